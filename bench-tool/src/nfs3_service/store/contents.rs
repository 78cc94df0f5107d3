//! The bytes of a file: pages where something was written, and nothing where not.

use std::collections::BTreeMap;

use super::pages::{Page, Pages};

/// The longest file, in bytes: offsets are signed numbers of 64 bits at many clients.
pub const FILE_BYTES_MAX: u64 = i64::MAX.cast_unsigned();

/// What holes read as.
static ZEROES: [u8; 64 * 1024] = [0; 64 * 1024];

/// The bytes of a file. It does not own the memory that its pages come from, so it is to be cut to
/// nothing before it is dropped.
#[derive(Debug, Default)]
pub(super) struct Contents {
    size_bytes: u64,
    /// Pages by their number in the file. Bytes of the last beyond the size are zeroes.
    pages: BTreeMap<u64, Page>,
}

impl Contents {
    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Pages that it takes.
    pub(super) fn page_count(&self) -> usize {
        self.pages.len()
    }

    /// The pieces of the bytes from `offset_bytes` on, as many as there are up to `count_bytes`.
    pub(super) fn pieces<'a, P: Pages>(
        &'a self,
        memory: &'a P,
        offset_bytes: u64,
        count_bytes: u32,
    ) -> impl Iterator<Item = &'a [u8]> {
        let page_bytes = memory.page_bytes();
        let end = offset_bytes
            .saturating_add(u64::from(count_bytes))
            .min(self.size_bytes);
        let mut at = offset_bytes;
        std::iter::from_fn(move || {
            let left = end.checked_sub(at).filter(|left| *left > 0)?;
            let (number, start) = split(at, page_bytes);
            let bytes = match self.pages.get(&number) {
                Some(page) => memory.bytes(page).get(start..)?,
                None => ZEROES.get(..(page_bytes - start).min(ZEROES.len()))?,
            };
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
            at += to_u64(count);
            // A page without bytes would be read for ever.
            bytes.get(..count).filter(|bytes| !bytes.is_empty())
        })
    }

    /// Writes the pieces one behind the other, from `offset_bytes` on; the bytes for which there was
    /// memory. The caller has made sure that they end before [`FILE_BYTES_MAX`].
    pub(super) fn write<'a, P: Pages>(
        &mut self,
        memory: &mut P,
        offset_bytes: u64,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> u64 {
        let page_bytes = memory.page_bytes();
        let mut at = offset_bytes;
        'pieces: for mut piece in pieces {
            while !piece.is_empty() {
                let (number, start) = split(at, page_bytes);
                let Some(space) = self.page(memory, number) else {
                    break 'pieces;
                };
                let space = space.get_mut(start..).unwrap_or(&mut []);
                let count = space.len().min(piece.len());
                let Some((written, rest)) = piece.split_at_checked(count).filter(|_| count > 0)
                else {
                    break 'pieces;
                };
                if let Some(space) = space.get_mut(..count) {
                    space.copy_from_slice(written);
                }
                at += to_u64(count);
                piece = rest;
            }
        }
        if at > offset_bytes {
            self.size_bytes = self.size_bytes.max(at);
        }
        at - offset_bytes
    }

    /// The bytes of page `number`, which is taken if it is not there.
    fn page<'a, P: Pages>(&mut self, memory: &'a mut P, number: u64) -> Option<&'a mut [u8]> {
        use std::collections::btree_map::Entry;
        let page = match self.pages.entry(number) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(hole) => hole.insert(memory.take()?),
        };
        Some(memory.bytes_mut(page))
    }

    /// Makes it `size_bytes` long: cuts it, or adds a hole.
    pub(super) fn set_size<P: Pages>(&mut self, memory: &mut P, size_bytes: u64) {
        if size_bytes < self.size_bytes {
            let (number, start) = split(size_bytes, memory.page_bytes());
            let first_gone = if start == 0 { number } else { number + 1 };
            for page in self.pages.split_off(&first_gone).into_values() {
                memory.give(page);
            }
            if let Some(page) = self.pages.get(&number).filter(|_| start > 0) {
                let rest = memory.bytes_mut(page).get_mut(start..);
                rest.unwrap_or(&mut []).fill(0);
            }
        }
        self.size_bytes = size_bytes;
    }
}

/// The number of the page of a byte, and where in it the byte is.
fn split(at: u64, page_bytes: usize) -> (u64, usize) {
    let page_bytes = to_u64(page_bytes).max(1);
    let start = usize::try_from(at % page_bytes).unwrap_or(usize::MAX);
    (at / page_bytes, start)
}

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::pages::HeapPages;
    use super::*;

    fn read(contents: &Contents, memory: &HeapPages, offset: u64, count: u32) -> Vec<u8> {
        contents
            .pieces(memory, offset, count)
            .flatten()
            .copied()
            .collect()
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(u16, Vec<Vec<u8>>),
        SetSize(u16),
        Read(u16, u16),
    }

    fn step() -> impl Strategy<Value = Step> {
        let piece = prop::collection::vec(any::<u8>(), 0..90);
        prop_oneof![
            (0_u16..1000, prop::collection::vec(piece, 0..4))
                .prop_map(|(at, pieces)| Step::Write(at, pieces)),
            (0_u16..1200).prop_map(Step::SetSize),
            (0_u16..1200, 0_u16..1200).prop_map(|(at, count)| Step::Read(at, count)),
        ]
    }

    proptest! {
        #[test]
        fn a_file_is_what_was_written_and_zeroes(steps in prop::collection::vec(step(), 1..60)) {
            let mut memory = HeapPages::new(64 * 32, 64);
            let mut contents = Contents::default();
            let mut model: Vec<u8> = Vec::new();
            for step in steps {
                match step {
                    Step::Write(at, pieces) => {
                        let bytes = pieces.concat();
                        let slices = pieces.iter().map(|piece| &piece[..]);
                        let written = contents.write(&mut memory, u64::from(at), slices);
                        prop_assert_eq!(written, to_u64(bytes.len()));
                        let end = usize::from(at) + bytes.len();
                        if !bytes.is_empty() {
                            model.resize(model.len().max(end), 0);
                            model[usize::from(at)..end].copy_from_slice(&bytes);
                        }
                    }
                    Step::SetSize(size) => {
                        contents.set_size(&mut memory, u64::from(size));
                        model.resize(usize::from(size), 0);
                    }
                    Step::Read(at, count) => {
                        let start = usize::from(at).min(model.len());
                        let end = (start + usize::from(count)).min(model.len());
                        prop_assert_eq!(
                            read(&contents, &memory, u64::from(at), u32::from(count)),
                            &model[start..end]
                        );
                    }
                }
                prop_assert_eq!(contents.size_bytes(), to_u64(model.len()));
                let pages = to_u64(contents.page_count());
                prop_assert_eq!(memory.free() + pages, memory.total());
            }
            contents.set_size(&mut memory, 0);
            prop_assert_eq!(memory.free(), memory.total());
        }
    }

    #[test]
    fn holes_cost_nothing_and_a_full_memory_makes_short_writes() {
        let mut memory = HeapPages::new(2 * 64, 64);
        let mut contents = Contents::default();
        let far = 1 << 50;
        assert_eq!(
            contents.write(&mut memory, far, [&[7; 10][..]].into_iter()),
            10
        );
        assert_eq!(contents.page_count(), 1);
        assert_eq!(
            read(&contents, &memory, far - 70, 1000),
            [vec![0; 70], vec![7; 10]].concat()
        );
        assert_eq!(
            contents.write(&mut memory, 0, [&[1; 100][..]].into_iter()),
            64
        );
        assert_eq!(
            contents.write(&mut memory, 64, [&[1; 1][..]].into_iter()),
            0
        );
        assert_eq!(contents.size_bytes(), far + 10);
    }
}
