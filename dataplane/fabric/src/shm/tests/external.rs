//! Memory of the application: transfers from and into it, and what a peer that passes it can do.

use std::os::fd::OwnedFd;

use rustix::fs::MemfdFlags;

use super::peer_memory::{sparse_file, whole_file};
use super::*;
use crate::interface::{Access, PostError, RemoteAddress};
use crate::memory::{ExternalMemory, Views};
use crate::shm::peer_memory::{PeerMemory, PeerMemoryLimits};

const BLOCK: u32 = 65_536;

/// An end with memory of its application, tokens for leases on it, and the application's descriptor.
struct Owner {
    end: End,
    views: Views,
    memory: ExternalMemory,
    file: OwnedFd,
}

impl Owner {
    fn new(number: u32) -> Self {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("application", flags).unwrap();
        rustix::fs::ftruncate(&file, 4 * u64::from(BLOCK)).unwrap();
        let memory = ExternalMemory::of_file(file.try_clone().unwrap(), BLOCK).unwrap();
        let end = End::new(number, |config| config.arena.attach(&memory).unwrap());
        let views = Views::new(8, 1000);
        Self {
            end,
            views,
            memory,
            file,
        }
    }

    /// A token for a range that holds this.
    fn token(&mut self, offset: u64, content: &[u8]) -> Buffer {
        let mut lease = self.memory.lease(offset, content.len()).unwrap();
        lease.copy_from_slice(content);
        self.views.lend(lease).unwrap()
    }

    /// What the application reads by its own descriptor.
    fn content(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut content = vec![0; bytes];
        rustix::io::pread(&self.file, &mut content, offset).unwrap();
        content
    }
}

/// Polls until an RDMA Read of one buffer has ended well.
fn finish_read(end: &mut End) -> Buffer {
    for _ in 0..256 {
        let mut batch = CompletionBatch::new();
        end.port.poll(end.now, &mut batch);
        if let Some(completion) = batch.take() {
            assert_eq!(completion.status, Status::Success);
            let CompletionKind::Read(_, mut list) = completion.kind else {
                panic!("another completion");
            };
            return list.pop().unwrap().0;
        }
    }
    panic!("the read does not end");
}

fn pair_of_owners() -> (Owner, Owner) {
    let (mut a, mut b) = (Owner::new(0), Owner::new(1));
    (a.end.id, b.end.id) = joined(&mut a.end, &mut b.end);
    (a, b)
}

fn list(buffer: Buffer, bytes: u32) -> Gather {
    let mut list = Gather::new();
    list.push(buffer, 0, bytes).unwrap();
    list
}

fn remote(owner: &mut Owner, buffer: Buffer, access: Access) -> RemoteAddress {
    let (id, bytes) = (owner.end.id, buffer.capacity());
    let window = owner
        .end
        .port
        .bind_window(id, buffer, bytes, access)
        .unwrap();
    window.remote()
}

#[test]
fn a_long_send_an_rdma_read_and_an_rdma_write_use_it_where_it_is() {
    let (mut a, mut b) = pair_of_owners();
    // A long Send, from a part of a block: the peer pulls it out of the application's file.
    let sent = pattern(1, 40_000);
    let token = a.token(u64::from(BLOCK) + 512, &sent);
    let (id, mut gather) = (a.end.id, list(token, 40_000));
    let options = SendOptions::default();
    a.end.port.post_send(id, &mut gather, options).unwrap();
    a.end.port.flush_sends();
    let got = told(b.end.settle());
    assert_eq!(got, [(Status::Success, What::Received(sent, None))]);
    a.end.settle();
    let token = a.end.port.next_returned().unwrap();
    a.views.give(token);
    assert_eq!(a.memory.leased(), 0);

    // An RDMA Read, out of one application's memory into the other's.
    let there = pattern(2, 50_000);
    let source = b.token(2 * u64::from(BLOCK), &there);
    let read_only = Access {
        remote_read: true,
        remote_write: false,
    };
    let from = remote(&mut b, source, read_only);
    let target = a.token(3 * u64::from(BLOCK) + 8, &[0; 50_000]);
    let gather = list(target, 50_000);
    a.end.port.post_read(id, gather, from, WorkId(1)).unwrap();
    let target = finish_read(&mut a.end);
    a.views.give(target);
    assert!(a.content(3 * u64::from(BLOCK) + 8, 50_000) == there);

    // An RDMA Write, into a part of a block: the bytes around it stay.
    let write_only = Access {
        remote_read: false,
        remote_write: true,
    };
    let target = b.token(100, &[0; 30_000]);
    let to = remote(&mut b, target, write_only);
    let written = pattern(3, 30_000);
    let source = a.token(0, &written);
    let mut gather = list(source, 30_000);
    let work = Some(WorkId(2));
    a.end.port.post_write(id, &mut gather, to, work).unwrap();
    a.end.port.flush_sends();
    for _ in 0..4 {
        b.end.settle();
        a.end.settle();
    }
    assert!(b.content(100, 30_000) == written);
    assert_eq!(
        (b.content(0, 100), b.content(30_100, 8)),
        (vec![0; 100], vec![0; 8])
    );
}

/// A port knows the memory that was attached to its arena, and no other.
#[test]
fn memory_that_was_not_attached_is_refused() {
    let (mut a, mut b) = pair_of_owners();
    let foreign = b.token(0, &[1; 64]);
    let id = a.end.id;
    let access = Access {
        remote_read: true,
        remote_write: false,
    };
    let (error, foreign) = a.end.port.bind_window(id, foreign, 64, access).unwrap_err();
    assert_eq!(error, PostError::ForeignMemory);
    let mut gather = list(foreign, 64);
    let options = SendOptions::default();
    let refused = a.end.port.post_send(id, &mut gather, options);
    assert_eq!(refused, Err(PostError::ForeignMemory));
    b.views.give(gather.pop().unwrap().0);
}

/// The death of a connection ends no lease early: the token comes back when the peer can no longer reach the bytes.
#[test]
fn a_connection_that_ends_gives_the_tokens_back() {
    let (mut a, mut b) = pair_of_owners();
    let token = a.token(0, &[1; 64]);
    let access = Access {
        remote_read: true,
        remote_write: true,
    };
    remote(&mut a, token, access);
    let id = a.end.id;
    a.end.port.disconnect(id);
    assert_eq!(a.memory.leased(), 1);
    for _ in 0..4 {
        b.end.settle();
        a.end.settle();
    }
    assert_eq!(a.memory.leased(), 1, "its window is there");
    a.end.port.destroy_queue_pair(id);
    let token = a.end.port.next_returned().expect("it came back");
    assert_eq!(a.memory.leased(), 1);
    a.views.give(token);
    assert_eq!(a.memory.leased(), 0);
}

fn limits(total_bytes_max: u64) -> PeerMemory {
    PeerMemory::new(PeerMemoryLimits {
        arena_bytes_max: 1 << 20,
        total_bytes_max,
    })
}

/// The files behind an arena pass the same checks as the arena, and between them there are zeroes.
#[test]
fn the_application_memory_of_a_peer_is_checked_before_it_is_mapped() {
    let refused = |external: OwnedFd, total| {
        let mapped = limits(total).map_joined(7, &whole_file(8192), &[external]);
        mapped.expect_err("it is refused").to_string()
    };
    assert!(refused(sparse_file(8192), 1 << 20).contains("holes"));
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let unsealed = rustix::fs::memfd_create("unsealed", flags).unwrap();
    rustix::fs::ftruncate(&unsealed, 8192).unwrap();
    assert!(refused(unsealed, 1 << 20).contains("not sealed"));
    assert!(refused(whole_file(2 << 20), 1 << 30).contains("limit of 1048576"));
    // Each fits alone, and both do not.
    const BOTH: u64 = 2 * 8192 + ((1 << 30) - 8192) / 512;
    assert!(refused(whole_file(8192), BOTH - 1).contains("exceeds the limit"));
    // A part of a page.
    assert!(refused(whole_file(4097), 1 << 30).contains("wrong size: 4097"));

    let mut memory = limits(BOTH);
    let (arena, external) = (whole_file(8192), [whole_file(8192)]);
    let mapped = memory.map_joined(7, &arena, &external).unwrap();
    assert_eq!(mapped.bytes(), (1 << 30) + 8192);
    for offset in [
        0,
        8191,
        8192,
        1 << 29,
        (1 << 30) - 1,
        1 << 30,
        (1 << 30) + 8191,
    ] {
        let place = mapped.place(offset).unwrap();
        // SAFETY: within the mapping, all of which can be read.
        assert_eq!(unsafe { place.as_ptr().read_volatile() }, 0, "{offset}");
    }
    // It counts with the bytes of its files, and with the tables of the gap; it is mapped once.
    let again = memory.map_joined(7, &arena, &external).unwrap();
    assert!(std::sync::Arc::ptr_eq(&mapped, &again));
    let more = memory.map_joined(7, &whole_file(4096), &external);
    assert!(
        more.unwrap_err()
            .to_string()
            .contains(&format!("{BOTH} bytes of peers"))
    );
    // With other files behind it, an arena is another mapping, and they are checked.
    let mut memory = limits(1 << 30);
    let _whole = memory.map_joined(7, &arena, &external).unwrap();
    let other = memory.map_joined(7, &arena, &[sparse_file(8192)]);
    assert!(other.unwrap_err().to_string().contains("holes"));
}
