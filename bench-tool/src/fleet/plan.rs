//! Which clients a fleet has: their hosts, their servers, their command lines, and their shares of the rate.

use std::collections::BTreeMap;

use super::launch::replace;
use super::protocol::Share;
use crate::exit::Failure;

/// The word of a command line that stands for the address of a server.
pub(crate) const TARGET: &str = "{target}";

/// Upper bound of the clients of a fleet: each has a process and two threads here.
pub(crate) const CLIENTS_MAX: usize = 4096;

/// Who calls whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// All clients call one server.
    ManyToOne,
    /// One host calls every server, with a client for each.
    OneToMany,
    /// Every host calls every server, with a client for each pair.
    AllToAll,
}

impl Pattern {
    /// The name used on the command line and in reports.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::ManyToOne => "many-to-one",
            Self::OneToMany => "one-to-many",
            Self::AllToAll => "all-to-all",
        }
    }

    /// The pattern that hosts and servers make.
    fn of(hosts: usize, targets: usize) -> Self {
        match (hosts, targets) {
            (_, 0 | 1) => Self::ManyToOne,
            (1, _) => Self::OneToMany,
            _ => Self::AllToAll,
        }
    }

    /// Checks a pattern that the user gave.
    fn check(self, hosts: usize, targets: usize) -> Result<Self, Failure> {
        let refuse = |what: String, advice: &str| Err(Failure::usage(what).advice(advice));
        match self {
            Self::ManyToOne if targets > 1 => refuse(
                format!("many-to-one has one server, and --targets has {targets}"),
                "leave one, or give --pattern all-to-all",
            ),
            Self::OneToMany if hosts != 1 => refuse(
                format!("one-to-many has one host, and there are {hosts}"),
                "leave one, or give --pattern all-to-all",
            ),
            Self::OneToMany | Self::AllToAll if targets == 0 => refuse(
                format!("{} needs the servers", self.name()),
                "give --targets ADDR,ADDR,... and write {target} behind --connect",
            ),
            pattern => Ok(pattern),
        }
    }
}

/// A client of a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientPlan {
    pub(crate) host: String,
    /// The server from `--targets`; `None` if the command line names it.
    pub(crate) target: Option<String>,
    /// Its command line, without the program's name.
    pub(crate) arguments: Vec<String>,
    /// Its number among the clients of its host, and how many these are.
    pub(crate) place: usize,
    pub(crate) places: usize,
}

impl ClientPlan {
    /// `client 3 (b)`.
    pub(crate) fn name(&self, index: usize) -> String {
        format!("client {index} ({})", self.host)
    }
}

/// All clients: for each server those of all hosts, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FleetPlan {
    pub(crate) pattern: Pattern,
    pub(crate) clients: Vec<ClientPlan>,
}

impl FleetPlan {
    /// The clients on `hosts`, each of which may be named several times, that call `targets` (empty: the one in
    /// `arguments`).
    ///
    /// # Errors
    /// A usage failure for too many clients, a pattern that does not fit, and servers without a place in the arguments.
    pub(crate) fn new(
        hosts: &[String],
        targets: &[String],
        pattern: Option<Pattern>,
        arguments: &[String],
    ) -> Result<Self, Failure> {
        let names_target = arguments.iter().any(|word| word.contains(TARGET));
        if names_target && targets.is_empty() {
            return Err(Failure::usage(format!(
                "{TARGET} in the clients' command stands for a server of --targets, which is not given"
            ))
            .advice("give --targets ADDR,ADDR,..., or write the address"));
        }
        if !names_target && !targets.is_empty() {
            return Err(Failure::usage(format!(
                "--targets has no effect: the clients' command has no {TARGET}"
            ))
            .advice(format!("write --connect {TARGET} in it")));
        }
        let pattern = match pattern {
            Some(pattern) => pattern.check(hosts.len(), targets.len())?,
            None => Pattern::of(hosts.len(), targets.len()),
        };
        let count = hosts.len().saturating_mul(targets.len().max(1));
        if count > CLIENTS_MAX {
            return Err(
                Failure::usage(format!("these are {count} clients")).advice(format!(
                    "{CLIENTS_MAX} at most; each can have many connections (--connections)"
                )),
            );
        }
        let servers: Vec<Option<&String>> = match targets {
            [] => vec![None],
            targets => targets.iter().map(Some).collect(),
        };
        let pairs = servers
            .iter()
            .flat_map(|target| hosts.iter().map(move |host| (host, *target)));
        let mut places = BTreeMap::<&String, usize>::new();
        let mut clients: Vec<ClientPlan> = pairs
            .enumerate()
            .map(|(index, (host, target))| {
                let place = places.entry(host).or_default();
                *place += 1;
                ClientPlan {
                    host: host.clone(),
                    target: target.cloned(),
                    arguments: substituted(arguments, host, index, target),
                    place: *place - 1,
                    places: 0,
                }
            })
            .collect();
        for client in &mut clients {
            client.places = places.get(&client.host).copied().unwrap_or(1);
        }
        Ok(Self { pattern, clients })
    }
}

/// The words with this client's host, index and server.
fn substituted(
    arguments: &[String],
    host: &str,
    index: usize,
    target: Option<&String>,
) -> Vec<String> {
    let index = index.to_string();
    let mut values = vec![("{host}", host), ("{index}", index.as_str())];
    values.extend(target.map(|target| (TARGET, target.as_str())));
    arguments
        .iter()
        .map(|word| replace(word, &values))
        .collect()
}

/// The shares of `rate_per_s` for `clients` clients: whole, as equal as possible, and together all of it.
///
/// # Errors
/// A usage failure if there are more clients than calls per second: one without a rate would make no calls.
pub(crate) fn divide(rate_per_s: u64, clients: usize) -> Result<Vec<u64>, Failure> {
    let count = u64::try_from(clients).unwrap_or(u64::MAX);
    if rate_per_s < count {
        return Err(Failure::usage(format!(
            "{rate_per_s} calls per second are less than one for each of {clients} clients"
        ))
        .advice("raise --rate, or take fewer clients"));
    }
    let (each, rest) = (rate_per_s / count.max(1), rate_per_s % count.max(1));
    Ok((0..count).map(|it| each + u64::from(it < rest)).collect())
}

/// How long after the common start client number `place` of an open loop begins: the clients take turns, so that their
/// calls are not all due at the same moments.
pub(crate) fn delay_ns(place: usize, rate_per_s: u64) -> u64 {
    let place = u64::try_from(place).unwrap_or(u64::MAX);
    place.saturating_mul(1_000_000_000) / rate_per_s.max(1)
}

impl ClientPlan {
    /// The message that prepares this client, number `index`, for a round, with `options` behind its command.
    pub(crate) fn share(&self, index: usize, rate_per_s: Option<u64>, options: &[String]) -> Share {
        Share {
            arguments: [&self.arguments, options].concat(),
            rate_per_s,
            seed_offset: u64::try_from(index).unwrap_or(0),
            place: self.place,
            places: self.places,
            shows_latency: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rpcrdma_testkit::CheckWords;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn plan(hosts: &str, targets: &str, pattern: Option<Pattern>) -> Result<FleetPlan, Failure> {
        let line = match targets {
            "" => "run --connect shm:x",
            _ => "run --connect {target} --hgrm {host}-{index}",
        };
        FleetPlan::new(&words(hosts), &words(targets), pattern, &words(line))
    }

    fn pairs(plan: &FleetPlan) -> Vec<String> {
        let pair = |it: &ClientPlan| format!("{}>{}", it.host, it.target.as_deref().unwrap_or("-"));
        plan.clients.iter().map(pair).collect()
    }

    #[test]
    fn hosts_and_servers_make_the_pattern() {
        let many = plan("a b a", "", None).unwrap();
        assert_eq!(many.pattern, Pattern::ManyToOne);
        assert_eq!(pairs(&many), ["a>-", "b>-", "a>-"]);
        let places: Vec<_> = many
            .clients
            .iter()
            .map(|it| (it.place, it.places))
            .collect();
        assert_eq!(places, [(0, 2), (0, 1), (1, 2)]);
        assert_eq!(many.clients[2].name(2), "client 2 (a)");
        let one = plan("a", "shm:x shm:y", None).unwrap();
        assert_eq!(one.pattern, Pattern::OneToMany);
        assert_eq!(pairs(&one), ["a>shm:x", "a>shm:y"]);
        assert_eq!(one.clients[1].places, 2);
        let all = plan("a b", "shm:x shm:y", None).unwrap();
        assert_eq!(all.pattern, Pattern::AllToAll);
        assert_eq!(pairs(&all), ["a>shm:x", "b>shm:x", "a>shm:y", "b>shm:y"]);
        let line = words("run --connect shm:y --hgrm b-3");
        assert_eq!(all.clients[3].arguments, line);
        let share = all.clients[3].share(3, Some(250), &[]);
        assert_eq!((share.arguments, share.seed_offset), (line, 3));
    }

    #[test]
    fn a_pattern_that_does_not_fit_is_refused() {
        for (hosts, targets, pattern, expected) in [
            ("a b", "shm:x shm:y", Pattern::ManyToOne, "--targets has 2"),
            ("a b", "shm:x shm:y", Pattern::OneToMany, "there are 2"),
            ("a", "", Pattern::OneToMany, "give --targets"),
            ("a b", "", Pattern::AllToAll, "give --targets"),
        ] {
            let failure = plan(hosts, targets, Some(pattern)).unwrap_err();
            failure.check_words(&[expected]);
        }
        // One server of --targets is a pattern like any other.
        let pattern = Some(Pattern::AllToAll);
        assert_eq!(plan("a b", "shm:x", pattern).unwrap().clients.len(), 2);
    }

    #[test]
    fn servers_need_their_place_in_the_command_and_the_place_needs_servers() {
        let hosts = words("a");
        let without = FleetPlan::new(&hosts, &words("shm:x"), None, &words("run"));
        without.unwrap_err().check_words(&["--connect {target}"]);
        let without = FleetPlan::new(&hosts, &[], None, &words("run --connect {target}"));
        without.unwrap_err().check_words(&["--targets ADDR"]);
        let many = vec!["a".to_owned(); CLIENTS_MAX + 1];
        let too_many = FleetPlan::new(&many, &[], None, &words("run"));
        too_many.unwrap_err().check_words(&["4096 at most"]);
    }

    #[test]
    fn a_rate_below_the_number_of_clients_is_refused() {
        divide(7, 8).unwrap_err().check_words(&["8 clients"]);
        assert_eq!(divide(11, 4).unwrap(), [3, 3, 3, 2]);
        assert_eq!(delay_ns(3, 1_000_000), 3_000);
    }

    proptest! {
        #[test]
        fn the_shares_are_all_of_the_rate_and_as_equal_as_can_be(
            clients in 1_usize..500,
            more in 0_u64..10_000_000,
        ) {
            let rate = clients as u64 + more;
            let shares = divide(rate, clients).unwrap();
            prop_assert_eq!(shares.len(), clients);
            prop_assert_eq!(shares.iter().sum::<u64>(), rate);
            let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
            prop_assert!(most - least <= 1);
            // The last client begins before the first one makes its second call.
            prop_assert!(delay_ns(clients - 1, rate) < 1_000_000_000 / (rate / clients as u64));
        }
    }
}
