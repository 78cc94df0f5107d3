//! Model checks of the flags of blocks. When a thread takes a block, it sees every write of the last holder.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p rpcrdma-fabric --release loom`

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::blocks::Blocks;

/// A block with one word of content.
struct Block {
    blocks: Blocks,
    content: UnsafeCell<u32>,
}

impl Block {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            blocks: Blocks::new(1),
            content: UnsafeCell::new(0),
        })
    }

    /// Adds one to the content. Only the holder calls it.
    fn count_up(&self) {
        // SAFETY: loom reports an access that is not ordered with an access of another thread.
        self.content.with_mut(|content| unsafe { *content += 1 });
    }

    /// Takes the block, adds one and gives it back; false if somebody has it.
    fn use_once(&self) -> bool {
        let is_mine = self.blocks.take(0).expect("there is one");
        if is_mine {
            self.count_up();
            self.blocks.give(0);
        }
        is_mine
    }
}

#[test]
fn a_block_goes_from_one_holder_to_the_next() {
    loom::model(|| {
        let block = Block::new();
        let users: Vec<_> = (0..2)
            .map(|_| {
                let block = Arc::clone(&block);
                thread::spawn(move || u32::from(block.use_once()))
            })
            .collect();
        let mut uses = u32::from(block.use_once());
        for user in users {
            uses += user.join().expect("it ends");
        }
        assert!(uses > 0, "the first finds it free");
        // SAFETY: as in `count_up`.
        let content = block.content.with(|content| unsafe { *content });
        assert_eq!(content, uses);
    });
}

/// A lease is dropped on another thread than the one that took it, and a third takes the block.
#[test]
fn a_block_that_another_thread_gives_back_is_taken_again() {
    loom::model(|| {
        let block = Block::new();
        assert_eq!(block.blocks.take(0), Some(true));
        block.count_up();
        let holder = Arc::clone(&block);
        let holder = thread::spawn(move || {
            holder.count_up();
            holder.blocks.give(0);
        });
        let next = Arc::clone(&block);
        let next = thread::spawn(move || next.use_once());
        holder.join().expect("it ends");
        let uses = 2 + u32::from(next.join().expect("it ends"));
        // SAFETY: as in `count_up`.
        let content = block.content.with(|content| unsafe { *content });
        assert_eq!(content, uses);
    });
}

/// The application accesses a block that is not leased.
#[test]
fn a_block_that_is_seen_free_is_no_longer_used() {
    loom::model(|| {
        let block = Block::new();
        assert_eq!(block.blocks.take(0), Some(true));
        let holder = Arc::clone(&block);
        let holder = thread::spawn(move || {
            holder.count_up();
            holder.blocks.give(0);
        });
        if block.blocks.leased() == 0 {
            block.count_up();
        }
        holder.join().expect("it ends");
    });
}
