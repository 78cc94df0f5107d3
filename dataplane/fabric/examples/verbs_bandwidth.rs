//! Bandwidth of RDMA Read and RDMA Write at fabric level, between two ports of one device: beside
//! `ib_read_bw` and `ib_write_bw` of the same machine.
//!
//! `verbs_bandwidth [BYTES [DEPTH [SECONDS [DEVICE]]]]`: by default 65536 bytes, 128 outstanding as
//! those programs have, 3 seconds each.

fn main() {
    verbs::main();
}

mod verbs {
    use std::time::{Duration, Instant};

    use rpcrdma_fabric::clock::Clock;
    use rpcrdma_fabric::interface::prelude::*;
    use rpcrdma_fabric::interface::{
        Access, CompletionBatch, CompletionKind, Gather, PostError, QueuePairId,
        ReceiveQueueAttributes, ReceiveQueueId, RemoteAddress, Status, Window, WorkId,
    };
    use rpcrdma_fabric::memory::{Arena, ArenaOptions, Buffer, HugePages, Pool, PoolShape};
    use rpcrdma_fabric::verbs::{Port, PortConfig, PortHandle, join};

    struct Options {
        bytes: u32,
        depth: u32,
        duration: Duration,
        device: Option<String>,
    }

    impl Options {
        fn read() -> Self {
            let arguments: Vec<String> = std::env::args().skip(1).collect();
            let number = |place: usize, default: u32| {
                arguments.get(place).map_or(default, |argument| {
                    argument.parse().expect("a number of bytes, depth or time")
                })
            };
            Self {
                bytes: number(0, 65_536),
                depth: number(1, 128),
                duration: Duration::from_secs(number(2, 3).into()),
                device: arguments.get(3).cloned(),
            }
        }
    }

    struct End {
        port: Port,
        handle: PortHandle,
        pool: Pool,
        queue: ReceiveQueueId,
    }

    fn end(options: &Options, buffers: u32) -> End {
        let stride = options.bytes.next_multiple_of(4096);
        let arena = Arena::private(&ArenaOptions {
            bytes: u64::from(buffers) * u64::from(stride),
            huge_pages: HugePages::Prefer,
        })
        .expect("memory");
        let config = PortConfig {
            device: options.device.clone(),
            queue_pairs_max: 1,
            receives_max: 16,
            work_requests_max: 4 * options.depth.max(16),
            send_queue_depth_max: options.depth.max(16) + 1,
            send_segments_max: 1,
            windows_max: 2,
            inline_bytes_max: 64,
            initiator_depth: u8::try_from(options.depth.min(128)).unwrap_or(128),
            responder_resources: 128,
            ..PortConfig::new(arena, Clock::new())
        };
        let (mut port, handle) = Port::new(config).expect("an RDMA device with an active port");
        let pool = port
            .carve(PoolShape {
                buffers,
                buffer_bytes: options.bytes,
                stride_bytes: stride,
                align_bytes: 4096,
            })
            .expect("the arena holds the pool");
        let queue = port
            .create_receive_queue(ReceiveQueueAttributes {
                depth: 8,
                segments_max: 1,
            })
            .expect("a receive queue");
        End {
            port,
            handle,
            pool,
            queue,
        }
    }

    /// The side that reads and writes; the other only has a window.
    struct Initiator {
        end: End,
        queue_pair: QueuePairId,
        to: RemoteAddress,
        bytes: u32,
    }

    impl Initiator {
        fn list(&mut self) -> Option<Gather> {
            let buffer = self.end.pool.take()?;
            let mut list = Gather::new();
            list.push(buffer, 0, self.bytes).expect("it fits");
            Some(list)
        }

        fn give(&mut self, mut list: Gather) {
            while let Some((buffer, _, _)) = list.pop() {
                self.end.pool.give(buffer);
            }
        }

        /// Posts one operation. Whether there was room, and a buffer.
        fn post(&mut self, read: bool) -> bool {
            let Some(mut list) = self.list() else {
                return false;
            };
            let port = &mut self.end.port;
            let refused = if read {
                port.post_read(self.queue_pair, list, self.to, WorkId(0))
                    .err()
            } else {
                port.post_write(self.queue_pair, &mut list, self.to, None)
                    .err()
                    .map(|error| (error, list))
            };
            match refused {
                None => true,
                Some((PostError::QueueFull, list)) => {
                    self.give(list);
                    false
                }
                Some((error, _)) => panic!("{error}"),
            }
        }

        /// Takes what is done; returns how many operations.
        fn reap(&mut self, batch: &mut CompletionBatch) -> u64 {
            self.end.port.poll(0, batch);
            let mut done = 0;
            for completion in batch.drain() {
                assert_eq!(completion.status, Status::Success);
                if let CompletionKind::Read(_, mut list) = completion.kind {
                    done += 1;
                    while let Some((buffer, _, _)) = list.pop() {
                        self.end.pool.give(buffer);
                    }
                }
            }
            while let Some(buffer) = self.end.port.next_returned() {
                self.end.pool.give(buffer);
                done += 1;
            }
            done
        }

        /// Megabytes (10^6) in a second.
        fn bandwidth(&mut self, read: bool, duration: Duration) -> f64 {
            let mut batch = CompletionBatch::new();
            let (mut posted, mut done) = (0_u64, 0_u64);
            let start = Instant::now();
            let mut elapsed = Duration::ZERO;
            while elapsed < duration || done < posted {
                if elapsed < duration {
                    while self.post(read) {
                        posted += 1;
                    }
                    self.end.port.flush_sends();
                }
                done += self.reap(&mut batch);
                elapsed = start.elapsed();
            }
            let total = done * u64::from(self.bytes);
            // Far below 2^53.
            #[allow(clippy::cast_precision_loss)]
            let total = total as f64;
            total / elapsed.as_secs_f64() / 1e6
        }
    }

    fn expose(end: &mut End, queue_pair: QueuePairId, bytes: u32) -> Window {
        let buffer: Buffer = end.pool.take().expect("a buffer");
        let access = Access {
            remote_read: true,
            remote_write: true,
        };
        let window = end.port.bind_window(queue_pair, buffer, bytes, access);
        end.port.flush_sends();
        window.expect("a window")
    }

    pub(super) fn main() {
        let options = Options::read();
        let (mut a, mut b) = (end(&options, options.depth), end(&options, 1));
        let queues = (a.queue, b.queue);
        let ids = join(&mut a.port, &a.handle, &mut b.port, &b.handle, queues);
        let (a_id, b_id) = ids.expect("two queue pairs of one device");
        let window = expose(&mut b, b_id, options.bytes);
        let mut initiator = Initiator {
            end: a,
            queue_pair: a_id,
            to: window.remote(),
            bytes: options.bytes,
        };
        let attributes = initiator.end.port.attributes();
        println!(
            "{}: {} bytes, {} outstanding, RDMA Reads {} at a time",
            attributes.device, options.bytes, options.depth, attributes.read_depth_max
        );
        for (name, read) in [("RDMA Read", true), ("RDMA Write", false)] {
            initiator.bandwidth(read, Duration::from_millis(200));
            let rate = initiator.bandwidth(read, options.duration);
            println!(
                "{name}: {rate:.1} MB/s (10^6), {:.1} MiB/s",
                rate / 1.048_576
            );
        }
    }
}
