//! Links that go down and up under a connection that goes back to its first address.

use super::*;

/// A client with a connection by one of its addresses, and the way back to the first of them, on links that go down and up.
struct Client {
    world: World,
    begin: Instant,
    /// When each address does not work, in milliseconds.
    downs: Vec<Vec<std::ops::Range<u64>>>,
    current: Tried,
    returning: Option<Tried>,
}

/// A target, and what it is doing.
#[derive(Clone, Copy, Debug)]
struct Tried {
    id: TargetId,
    doing: Doing,
}

#[derive(Clone, Copy, Debug)]
enum Doing {
    Waits,
    /// An attempt, until this time, and whether it succeeds.
    Tries(u64, bool),
    /// It is connected at this address, since this time.
    Has(usize, u64),
}

/// What an attempt takes, and one at an address that does not work, and the loss of a connection there.
const ATTEMPT_MS: u64 = 10;
const FAILURE_MS: u64 = 2500;
const LOSS_MS: u64 = 500;
const RETURN_AFTER: Duration = Duration::from_secs(2);

impl Client {
    fn new(downs: Vec<Vec<std::ops::Range<u64>>>) -> Self {
        let mut world = World::new(1_000_000, 0);
        let addresses = Self::addresses(downs.len());
        let named: Vec<_> = addresses.iter().map(String::as_str).collect();
        let id = world.add_all(&named, steady());
        let begin = world.now;
        let doing = Doing::Waits;
        Self {
            world,
            begin,
            downs,
            current: Tried { id, doing },
            returning: None,
        }
    }

    fn addresses(count: usize) -> Vec<String> {
        (0..count).map(|it| format!("shm:{it}")).collect()
    }

    fn now_ms(&self) -> u64 {
        u64::try_from((self.world.now - self.begin).as_millis()).unwrap()
    }

    fn works(&self, at: usize, during: std::ops::Range<u64>) -> bool {
        let mut downs = self.downs[at].iter();
        downs.all(|down| down.end <= during.start || down.start >= during.end)
    }

    /// When a connection is lost, which was made at this time.
    fn lost_ms(&self, at: usize, since: u64) -> Option<u64> {
        let lost = |down: &std::ops::Range<u64>| down.start.max(since) + LOSS_MS;
        let downs = self.downs[at].iter();
        downs.filter(|down| lost(down) <= down.end).map(lost).min()
    }

    /// When something happens next to a target, other than that it is due.
    fn next_ms(&self, tried: Tried) -> Option<u64> {
        match tried.doing {
            Doing::Waits => None,
            Doing::Tries(until, _) => Some(until),
            Doing::Has(at, since) => self.lost_ms(at, since),
        }
    }

    fn begins(&self, tried: &mut Tried) {
        let at = self.at(tried.id);
        let now = self.now_ms();
        let works = self.works(at, now..now + ATTEMPT_MS);
        let takes = if works { ATTEMPT_MS } else { FAILURE_MS };
        tried.doing = Doing::Tries(now + takes, works);
    }

    fn at(&self, id: TargetId) -> usize {
        let address = self.world.targets.address(id).unwrap();
        address.strip_prefix("shm:").unwrap().parse().unwrap()
    }

    /// Goes on until this time. Returns when the connection was lost, for how long it had lasted, and when the next one was there.
    fn run_until(&mut self, end_ms: u64) -> Vec<(u64, u64, u64)> {
        let (mut losses, mut lost) = (Vec::new(), None);
        loop {
            let all = [Some(self.current), self.returning];
            let happens = all.into_iter().flatten().filter_map(|it| self.next_ms(it));
            let due = self.world.targets.next_due();
            let due = due.map(|due| due.saturating_duration_since(self.begin));
            let due = due.map(|due| u64::try_from(due.as_nanos().div_ceil(1_000_000)).unwrap());
            let Some(next) = happens.chain(due).min().filter(|next| *next < end_ms) else {
                return losses;
            };
            let next = next.max(self.now_ms());
            self.world.now = self.begin + Duration::from_millis(next);
            let now = self.world.now;
            while let Some(id) = self.world.targets.poll(now) {
                let mut tried = if id == self.current.id {
                    self.current
                } else {
                    self.returning.unwrap()
                };
                self.begins(&mut tried);
                if id == self.current.id {
                    self.current = tried;
                } else {
                    self.returning = Some(tried);
                }
            }
            let is_over = |it: &Tried| self.next_ms(*it) == Some(next);
            if is_over(&self.current) {
                let id = self.current.id;
                match self.current.doing {
                    Doing::Tries(_, true) => {
                        self.world.targets.handle_established(id, now);
                        let at = self.at(id);
                        self.current.doing = Doing::Has(at, next);
                        if let Some((at, lasted)) = lost.take() {
                            losses.push((at, lasted, next));
                        }
                        if at != 0 {
                            self.goes_back();
                        }
                    }
                    Doing::Tries(_, false) => {
                        self.world.targets.handle_failed(id, &refused(), now);
                        self.current.doing = Doing::Waits;
                    }
                    Doing::Has(_, since) => {
                        lost = Some((next, next - since));
                        self.forget_return();
                        self.world.targets.handle_lost(id, CloseReason::Peer, now);
                        self.current.doing = Doing::Waits;
                    }
                    Doing::Waits => {}
                }
            } else if let Some(returning) = self.returning.filter(is_over) {
                match returning.doing {
                    Doing::Tries(_, true) => {
                        self.world.targets.handle_established(returning.id, now);
                        self.world.targets.remove(self.current.id);
                        let doing = Doing::Has(0, next);
                        self.current = Tried { doing, ..returning };
                        self.returning = None;
                    }
                    _ => {
                        let targets = &mut self.world.targets;
                        targets.handle_failed(returning.id, &refused(), now);
                        let doing = Doing::Waits;
                        self.returning = Some(Tried { doing, ..returning });
                    }
                }
            }
        }
    }

    fn goes_back(&mut self) {
        self.forget_return();
        self.world.added += 1;
        let id = TargetId(self.world.added);
        let addresses = Self::addresses(self.downs.len());
        let (versions, now) = (Versions::Two, self.world.now);
        let targets = &mut self.world.targets;
        targets.add_for_first(id, &addresses, versions, steady(), RETURN_AFTER, now);
        let doing = Doing::Waits;
        self.returning = Some(Tried { id, doing });
    }

    fn forget_return(&mut self) {
        if let Some(returning) = self.returning.take() {
            self.world.targets.remove(returning.id);
        }
    }
}

proptest::proptest! {
    /// Links go down and up. While one of the addresses works, a connection that is lost is soon made again: by then the others were
    /// tried once at most, for any waits that the way back has begun there. Only after a connection that did not last there may be a wait.
    #[test]
    fn while_an_address_works_a_lost_connection_is_soon_made_again(
        downs in proptest::collection::vec(
            proptest::collection::vec((0_u64..40_000, 0_u64..40_000), 1..6), 2..4),
    ) {
        let ranges = |gaps: Vec<(u64, u64)>| {
            let mut now = 0;
            let range = |(works, down)| {
                let begin = now + works;
                now = begin + down;
                begin..now
            };
            gaps.into_iter().map(range).collect()
        };
        let mut client = Client::new(downs.into_iter().map(ranges).collect());
        let count = client.downs.len();
        let longest = u64::try_from(steady().longest().as_millis()).unwrap();
        for (lost, lasted, again) in client.run_until(1_000_000) {
            let attempts = FAILURE_MS * (count as u64 - 1) + ATTEMPT_MS;
            let waits = if lasted >= longest { 0 } else { longest };
            let works = (0..count).any(|at| client.works(at, lost..again));
            proptest::prop_assert!(
                !works || again - lost <= attempts + waits,
                "lost at {lost} after {lasted}, made again at {again}: {:?}",
                client.downs
            );
        }
        let is_there = matches!(client.current.doing, Doing::Has(..));
        proptest::prop_assert!(is_there, "all addresses work in the end");
    }
}

/// The first cable is in its place again, and the second one is pulled, before the way back was tried again.
#[test]
fn connection_goes_on_at_an_address_that_works_again_since_its_last_failure() {
    let downs = vec![vec![5_000..65_000], vec![66_000..200_000]];
    let mut client = Client::new(downs.into_iter().collect());
    let losses = client.run_until(100_000);
    let [(first, ..), (second, lasted, again)] = losses[..] else {
        panic!("{losses:?}");
    };
    assert_eq!((first, second), (5_500, 66_500));
    assert!(lasted > 60_000, "{lasted}");
    assert!(again - second < 100, "made again at {again}");
}
