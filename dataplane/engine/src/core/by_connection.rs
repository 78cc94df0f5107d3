//! What is remembered of the last call or reply of each connection, for the next one of its shape.

use crate::rpc::ConnectionKey;

/// The most places. So many connections can take turns and find what they left.
const PLACES_MAX: u32 = 32;

/// A place for each connection. Connections beyond [`PLACES_MAX`] share theirs, so what is in one says whose it is.
#[derive(Debug)]
pub(crate) struct ByConnection<T>(Box<[T]>);

impl<T> ByConnection<T> {
    /// Places for the connections of a core that has at most `connections_max`; `make` makes what is in them.
    pub(crate) fn new(connections_max: u32, make: impl Fn() -> T) -> Self {
        let places = connections_max.clamp(1, PLACES_MAX).next_power_of_two();
        Self((0..places).map(|_| make()).collect())
    }

    fn place(&self, key: ConnectionKey) -> usize {
        // The number of places is a power of two.
        key.index as usize & (self.0.len() - 1)
    }

    /// The place of a connection.
    #[inline]
    pub(crate) fn of(&self, key: ConnectionKey) -> &T {
        &self.0[self.place(key)]
    }

    /// The place of a connection.
    #[inline]
    pub(crate) fn of_mut(&mut self, key: ConnectionKey) -> &mut T {
        let place = self.place(key);
        &mut self.0[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_has_its_place_while_there_are_any() {
        for (connections_max, places) in [(0, 1), (1, 1), (3, 4), (10_000, PLACES_MAX)] {
            let mut table = ByConnection::new(connections_max, || None);
            let key = |index| ConnectionKey {
                index,
                generation: 7,
            };
            for index in 0..places {
                assert_eq!(*table.of(key(index)), None, "{index} of {connections_max}");
                *table.of_mut(key(index)) = Some(index);
            }
            for index in 0..2 * places {
                assert_eq!(*table.of(key(index)), Some(index % places));
            }
        }
    }
}
