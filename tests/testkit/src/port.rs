//! Delegates the methods of a port to another port.

/// Implements the named methods of the traits of `rpcrdma_fabric::interface::Port` as calls of the same method of the
/// field `port`. A test port can then observe or change the other methods.
#[macro_export]
macro_rules! pass_on {
    (@ attributes) => {
        fn attributes(&self) -> &rpcrdma_fabric::interface::Attributes {
            self.port.attributes()
        }
    };
    (@ memory) => {
        fn memory(&self) -> &rpcrdma_fabric::memory::Memory {
            self.port.memory()
        }
    };
    (@ carve) => {
        fn carve(&mut self, shape: rpcrdma_fabric::memory::PoolShape) -> Result<rpcrdma_fabric::memory::Pool, rpcrdma_fabric::interface::SetupError> {
            self.port.carve(shape)
        }
    };
    (@ carve_untouched) => {
        fn carve_untouched(&mut self, shape: rpcrdma_fabric::memory::PoolShape) -> Result<Option<rpcrdma_fabric::memory::Pool>, rpcrdma_fabric::interface::SetupError> {
            self.port.carve_untouched(shape)
        }
    };
    (@ page_report) => {
        fn page_report(&self) -> &rpcrdma_fabric::memory::PageReport {
            self.port.page_report()
        }
    };
    (@ set_forms) => {
        fn set_forms(&mut self, forms: rpcrdma_fabric::interface::Forms) {
            self.port.set_forms(forms);
        }
    };
    (@ create_receive_queue) => {
        fn create_receive_queue(&mut self, attributes: rpcrdma_fabric::interface::ReceiveQueueAttributes) -> Result<rpcrdma_fabric::interface::ReceiveQueueId, rpcrdma_fabric::interface::SetupError> {
            self.port.create_receive_queue(attributes)
        }
    };
    (@ create_receive) => {
        fn create_receive(&mut self, queue: rpcrdma_fabric::interface::ReceiveQueueId, segments: &mut dyn Iterator<Item = rpcrdma_fabric::memory::Buffer>) -> Result<rpcrdma_fabric::interface::Receive, rpcrdma_fabric::interface::SetupError> {
            self.port.create_receive(queue, segments)
        }
    };
    (@ post_receive) => {
        fn post_receive(&mut self, receive: rpcrdma_fabric::interface::Receive) -> Option<rpcrdma_fabric::interface::Receive> {
            self.port.post_receive(receive)
        }
    };
    (@ flush_receives) => {
        fn flush_receives(&mut self) {
            self.port.flush_receives();
        }
    };
    (@ receives_posted) => {
        fn receives_posted(&self, queue: rpcrdma_fabric::interface::ReceiveQueueId) -> u32 {
            self.port.receives_posted(queue)
        }
    };
    (@ received) => {
        fn received(&self, receive: &rpcrdma_fabric::interface::Receive) -> &[u8] {
            self.port.received(receive)
        }
    };
    (@ received_segment) => {
        fn received_segment(&self, receive: &rpcrdma_fabric::interface::Receive, index: usize) -> Option<&[u8]> {
            self.port.received_segment(receive, index)
        }
    };
    (@ replace_segment) => {
        fn replace_segment(&mut self, receive: &mut rpcrdma_fabric::interface::Receive, index: usize, fresh: rpcrdma_fabric::memory::Buffer) -> Result<rpcrdma_fabric::memory::Buffer, rpcrdma_fabric::memory::Buffer> {
            self.port.replace_segment(receive, index, fresh)
        }
    };
    (@ adopt_queue_pair) => {
        fn adopt_queue_pair(&mut self, prepared: Self::PreparedQueuePair, queue: rpcrdma_fabric::interface::ReceiveQueueId) -> Result<rpcrdma_fabric::interface::QueuePairId, rpcrdma_fabric::interface::SetupError> {
            self.port.adopt_queue_pair(prepared, queue)
        }
    };
    (@ handle_event) => {
        fn handle_event(&mut self, port_event: Self::PortEvent) {
            self.port.handle_event(port_event);
        }
    };
    (@ post_send_copied) => {
        fn post_send_copied(&mut self, queue_pair: rpcrdma_fabric::interface::QueuePairId, source: &rpcrdma_fabric::memory::Buffer, bytes: u32, options: rpcrdma_fabric::interface::SendOptions) -> Result<(), rpcrdma_fabric::interface::PostError> {
            self.port.post_send_copied(queue_pair, source, bytes, options)
        }
    };
    (@ post_send) => {
        fn post_send(&mut self, queue_pair: rpcrdma_fabric::interface::QueuePairId, list: &mut rpcrdma_fabric::interface::Gather, options: rpcrdma_fabric::interface::SendOptions) -> Result<(), rpcrdma_fabric::interface::PostError> {
            self.port.post_send(queue_pair, list, options)
        }
    };
    (@ post_write) => {
        fn post_write(&mut self, queue_pair: rpcrdma_fabric::interface::QueuePairId, list: &mut rpcrdma_fabric::interface::Gather, to: rpcrdma_fabric::interface::RemoteAddress, signalled: Option<rpcrdma_fabric::interface::WorkId>) -> Result<(), rpcrdma_fabric::interface::PostError> {
            self.port.post_write(queue_pair, list, to, signalled)
        }
    };
    (@ probe) => {
        fn probe(&mut self, queue_pair: rpcrdma_fabric::interface::QueuePairId, work: rpcrdma_fabric::interface::WorkId) -> Result<(), rpcrdma_fabric::interface::PostError> {
            self.port.probe(queue_pair, work)
        }
    };
    (@ oldest_work) => {
        fn oldest_work(&mut self, queue_pair: rpcrdma_fabric::interface::QueuePairId) -> Option<u64> {
            self.port.oldest_work(queue_pair)
        }
    };
    (@ bind_window) => {
        fn bind_window(&mut self, queue_pair: rpcrdma_fabric::interface::QueuePairId, buffer: rpcrdma_fabric::memory::Buffer, bytes: u32, access: rpcrdma_fabric::interface::Access) -> Result<rpcrdma_fabric::interface::Window, (rpcrdma_fabric::interface::PostError, rpcrdma_fabric::memory::Buffer)> {
            self.port.bind_window(queue_pair, buffer, bytes, access)
        }
    };
    (@ invalidate_window) => {
        fn invalidate_window(&mut self, window: rpcrdma_fabric::interface::Window, work: rpcrdma_fabric::interface::WorkId) -> Result<(), (rpcrdma_fabric::interface::PostError, rpcrdma_fabric::interface::Window)> {
            self.port.invalidate_window(window, work)
        }
    };
    (@ close_window) => {
        fn close_window(&mut self, window: rpcrdma_fabric::interface::Window) -> Result<rpcrdma_fabric::memory::Buffer, rpcrdma_fabric::interface::Window> {
            self.port.close_window(window)
        }
    };
    (@ window_has_key) => {
        fn window_has_key(&self, window: &rpcrdma_fabric::interface::Window, key: rpcrdma_fabric::interface::RemoteKey) -> bool {
            self.port.window_has_key(window, key)
        }
    };
    (@ flush_sends) => {
        fn flush_sends(&mut self) {
            self.port.flush_sends();
        }
    };
    (@ arrived) => {
        fn arrived(&self, arrival: &rpcrdma_fabric::interface::Arrival) -> &[u8] {
            self.port.arrived(arrival)
        }
    };
    (@ keep) => {
        fn keep(&mut self, arrival: rpcrdma_fabric::interface::Arrival) -> Option<rpcrdma_fabric::interface::Receive> {
            self.port.keep(arrival)
        }
    };
    (@ next_returned) => {
        fn next_returned(&mut self) -> Option<rpcrdma_fabric::memory::Buffer> {
            self.port.next_returned()
        }
    };
    (@ disconnect) => {
        fn disconnect(&mut self, queue_pair: rpcrdma_fabric::interface::QueuePairId) {
            self.port.disconnect(queue_pair);
        }
    };
    (@ destroy_queue_pair) => {
        fn destroy_queue_pair(&mut self, queue_pair: rpcrdma_fabric::interface::QueuePairId) {
            self.port.destroy_queue_pair(queue_pair);
        }
    };
    (@ prepare_to_park) => {
        fn prepare_to_park(&mut self) -> bool {
            self.port.prepare_to_park()
        }
    };
    (@ waits_unnotified) => {
        fn waits_unnotified(&self) -> bool {
            self.port.waits_unnotified()
        }
    };
    (@ event) => {
        fn event(&self) -> std::os::fd::BorrowedFd<'_> {
            self.port.event()
        }
    };
    (@ unpark) => {
        fn unpark(&mut self) {
            self.port.unpark();
        }
    };
    (@ receiver_not_ready) => {
        fn receiver_not_ready(&self) -> u64 {
            self.port.receiver_not_ready()
        }
    };
    (@ counters) => {
        fn each_counter(&self, each: &mut dyn FnMut(rpcrdma_fabric::interface::Counted)) {
            self.port.each_counter(each);
        }
    };
    ($($method:ident)*) => {
        $($crate::pass_on!(@ $method);)*
    };
}
