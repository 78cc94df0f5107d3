//! Computes the tuning profile from what a run or a server needs of its cores.

use rpcrdma_control::Fabric;
use rpcrdma_tuning::{Layers, Loaded, Origin, Profile, Settings};

use crate::exit::Failure;

/// Generous bound of the headers around a payload.
const MESSAGE_OVERHEAD_BYTES: u64 = 4096;

/// The least messages of an end whose load is known: the questions of a run to its server have answers of some kilobytes.
const KNOWN_MESSAGE_BYTES: u32 = 16 << 10;

/// Upper bound of the pieces of one payload; a call can have four times as many.
const PAYLOAD_PIECES_MAX: u32 = 16;

/// Upper bound of the pieces of all payloads of one call.
const CALL_PIECES_MAX: u32 = 64;

/// Upper bound of the bulk buffers that a core reserves for the calls of peers.
const BUFFERS_KEPT_BACK_MAX: u32 = 32;

/// Upper bound of the bulk buffers of a core. If a load needs more, its calls wait for each other.
const BUFFERS_MAX: u32 = 65_536;

/// The largest value of the knob `bulk_calls_max`. As with buffers, calls beyond it wait.
const BULK_CALLS_MAX: u32 = 65_535;

/// Preferred upper bound of a bulk buffer; buffers are larger only if a payload would need too many of them.
const BUFFER_BYTES_MAX: u64 = 1 << 20;

/// The largest values of the knobs `message_bytes_max` and `bulk_buffer_bytes`.
const MESSAGE_BYTES_LIMIT: u64 = 1 << 30;
const BUFFER_BYTES_LIMIT: u64 = 16 << 20;

/// Default upper bound of a core's memory for placement segments.
const PLACEMENT_BYTES_MAX: u64 = 128 << 20;

/// Upper bound of the Receives that the connections of a core share.
const RECEIVES_SHARED_MAX: u32 = 1 << 24;

/// Sizes of bulk buffers are multiples of this.
const PAGE_BYTES: u64 = 4096;

/// The user's choice of a profile, and knobs that override it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProfileChoice {
    /// Name or file of the profile; with `None` it is the profile for the device.
    pub profile: Option<String>,
    /// `KNOB=VALUE`.
    pub set: Vec<String>,
}

impl ProfileChoice {
    /// The given option, for messages.
    #[must_use]
    pub(crate) fn given(&self) -> Option<&'static str> {
        let named = self.profile.as_ref().map(|_| "--profile");
        named.or_else(|| (!self.set.is_empty()).then_some("--set"))
    }

    /// The overriding knobs.
    ///
    /// # Errors
    /// A usage failure for one that does not exist or does not take the value.
    pub(crate) fn settings(&self) -> Result<Settings, Failure> {
        settings_of(&self.set)
    }

    /// The same choice as arguments for another process of this program.
    #[must_use]
    pub(crate) fn arguments(&self) -> Vec<String> {
        let option = |name: &str, value: &String| [name.to_owned(), value.clone()];
        let named = self
            .profile
            .iter()
            .flat_map(|name| option("--profile", name));
        let set = self.set.iter().flat_map(|knob| option("--set", knob));
        named.chain(set).collect()
    }
}

/// The knobs from a list of assignments; the last assignment of a knob applies.
///
/// # Errors
/// A usage failure for one that does not exist or does not take the value.
pub(crate) fn settings_of(assignments: &[String]) -> Result<Settings, Failure> {
    let mut settings = Settings::default();
    for assignment in assignments {
        settings
            .assign(assignment)
            .map_err(|error| Failure::usage("the tuning profile cannot be used").because(error))?;
    }
    Ok(settings)
}

/// Upper bound of the payload of one call in bytes, over all of its operations, for a core with this profile.
#[must_use]
pub(crate) fn call_payload_bytes_max(profile: &Profile) -> u64 {
    u64::from(profile.message_bytes_max).saturating_sub(MESSAGE_OVERHEAD_BYTES)
}

/// The largest payload in bytes that a core can be sized for, with so many payloads in each call. Without bulk buffers
/// the message is the limit.
#[must_use]
pub(crate) fn payload_bytes_max(payloads: u32, has_bulk: bool) -> u64 {
    let payloads = payloads.max(1);
    let pieces_max = u64::from(PAYLOAD_PIECES_MAX.min(CALL_PIECES_MAX / payloads).max(1));
    let of_message = (MESSAGE_BYTES_LIMIT - MESSAGE_OVERHEAD_BYTES) / u64::from(payloads);
    match has_bulk {
        true => of_message.min(pieces_max * BUFFER_BYTES_LIMIT),
        false => of_message,
    }
}

/// Payloads outside of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BulkNeed {
    /// Upper bound of the bulk calls outstanding on one core; 0 for none.
    pub calls: u32,
    /// Payloads in each call; at least one.
    pub payloads: u32,
}

/// The requirements of a client or a server for each of its cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// Connections on one core; with `None` the profile decides.
    pub connections_per_core: Option<u32>,
    /// Credits of each connection, for all connections at the same time. With `None` the profile decides, and busy
    /// connections have as many credits as there are Receives for.
    pub credits: Option<u32>,
    /// The largest payload in bytes; with `None` the profile decides.
    pub payload_bytes: Option<u64>,
    /// Whether nobody sends anything but these payloads and the questions of a run. Then messages are no longer than that,
    /// where nobody has chosen otherwise: each connection has memory for four of them.
    pub is_known: bool,
    /// Payloads outside of messages.
    pub bulk: BulkNeed,
    /// Calls outstanding on one core; with `None` the profile decides.
    pub calls_per_core: Option<u32>,
    /// Number of cores that together serve one peer.
    pub cores: u32,
    /// Whether an idle core sleeps.
    pub park: bool,
}

impl Need {
    /// Builds the profile. The layers, from weak to strong: the profile of the command line (or the embedded profile
    /// for the fabric), these requirements, and the knobs of the command line.
    ///
    /// # Errors
    /// A usage failure if there is no such profile, or it cannot meet the requirements.
    pub(crate) fn profile(
        &self,
        choice: &ProfileChoice,
        fabric: &Fabric,
    ) -> Result<Loaded, Failure> {
        let usage = |error: rpcrdma_tuning::Error| {
            Failure::usage("the tuning profile cannot be used").because(error)
        };
        let chosen = choice.profile.as_deref().map(Layers::choose);
        let layers = fabric.layers(chosen.transpose().map_err(usage)?)?;
        let set = choice.settings()?;
        let base = layers.clone().overrides(&set).build().map_err(usage)?;
        if *self == Self::default() {
            return Ok(base);
        }
        // The bulk memory of an embedded profile is for programs that do not state their needs. A run states them, so
        // start without that memory unless a file or the command line sets it.
        let is_chosen = |knob| matches!(base.origin(knob), Origin::File(_) | Origin::CommandLine);
        let mut settings = Settings {
            connections_max: self.connections_per_core,
            bulk_buffers: (!is_chosen("bulk_buffers")).then_some(0),
            placement_segments: (!is_chosen("placement_segments")).then_some(0),
            placement_segment_bytes: (!is_chosen("placement_segment_bytes"))
                .then_some(Profile::default().placement_segment_bytes),
            ..Settings::default()
        };
        let sized = layers.clone().overrides(&settings).overrides(&set).build();
        let base = sized.map_err(usage)?.profile;
        if let Some(connections) = self.connections_per_core {
            let all = connections.saturating_mul(self.cores.max(1));
            settings.peers_connections_max = Some(all.max(base.peers_connections_max));
        }
        if let Some(credits) = self.credits {
            let chosen = base.credits_per_connection.max(credits);
            settings.credits_per_connection = Some(chosen);
            // A connection could not use more credits than its core has calls.
            if chosen > base.calls_outstanding_max {
                settings.calls_outstanding_max = Some(chosen);
            }
            // All connections must be able to use their credits at the same time: add shared Receives if the profile
            // has too few.
            let connections = self.connections_per_core.unwrap_or(base.connections_max);
            let usual = Profile {
                connections_max: connections,
                credits_per_connection: chosen,
                ..base.clone()
            };
            // Each connection needs a Receive for each credit, and a spare one.
            let all = u64::from(connections) * (u64::from(credits) + 1);
            let guaranteed = u64::from(connections) * usual.receives_guaranteed();
            if base.receives_shared == 0 && all > usual.receives_posted() {
                let shared = u32::try_from(all - guaranteed).unwrap_or(u32::MAX);
                settings.receives_shared = Some(shared.min(RECEIVES_SHARED_MAX));
            }
        }
        if let Some(bytes) = self.payload_bytes {
            let payloads = bytes.saturating_mul(self.bulk.payloads.max(1).into());
            let message = payloads.saturating_add(MESSAGE_OVERHEAD_BYTES);
            let message = u32::try_from(message).unwrap_or(u32::MAX);
            let least = match self.is_known && !is_chosen("message_bytes_max") {
                true => base.receive_buffer_bytes.max(KNOWN_MESSAGE_BYTES),
                false => base.message_bytes_max,
            };
            settings.message_bytes_max = Some(message.max(least));
        }
        if let Some(calls) = self.calls_per_core {
            let credits = settings
                .credits_per_connection
                .unwrap_or(base.credits_per_connection);
            let calls = calls.max(base.calls_outstanding_max).max(credits);
            settings.calls_outstanding_max = Some(calls);
        }
        if self.bulk.calls != 0 {
            self.bulk_buffers(&base, &mut settings);
        }
        if self.park {
            settings.idle = Some(rpcrdma_tuning::Idle::Park);
        }
        layers
            .overrides(&settings)
            .overrides(&set)
            .build()
            .map_err(usage)
    }

    /// The profile of an end that makes calls with these payloads: see [`Need::profile`].
    ///
    /// # Errors
    /// Those of [`Need::profile`], and a usage failure for bulk buffers that do not hold one call: it would wait for ever.
    pub(crate) fn profile_of_calls(
        &self,
        choice: &ProfileChoice,
        fabric: &Fabric,
    ) -> Result<Loaded, Failure> {
        let loaded = self.profile(choice, fabric)?;
        let (profile, payloads) = (&loaded.profile, self.bulk.payloads.max(1));
        if self.bulk.calls == 0 {
            return Ok(loaded);
        }
        let payload_bytes = self.payload_bytes.unwrap_or(1).max(1);
        let pieces = payload_bytes.div_ceil(u64::from(profile.bulk_buffer_bytes).max(1));
        let needed = pieces.saturating_mul(payloads.into());
        let buffers = profile.bulk_buffers;
        // The core keeps a quarter for the calls of peers.
        let kept_back = |buffers: u64| (buffers / 4).min(BUFFERS_KEPT_BACK_MAX.into());
        if u64::from(buffers) - kept_back(buffers.into()) >= needed {
            return Ok(loaded);
        }
        let enough = (needed..).find(|it| it - kept_back(*it) >= needed);
        let origin = loaded.origin("bulk_buffers");
        Err(Failure::usage(format!(
            "no call could be made: each needs {needed} bulk buffers of {}, and of bulk_buffers = {buffers} ({origin}) a core gives \
             its own calls {}",
            rpcrdma_units::size(profile.bulk_buffer_bytes.into()),
            u64::from(buffers) - kept_back(buffers.into())
        ))
        .advice(format!(
            "leave bulk_buffers out, since it is sized by the load, or set it to {} at least",
            enough.unwrap_or(needed)
        )))
    }

    /// Sizes the bulk buffers for the payloads of all outstanding calls.
    fn bulk_buffers(&self, base: &Profile, settings: &mut Settings) {
        let BulkNeed { calls, payloads } = self.bulk;
        let payloads = payloads.max(1);
        let payload_bytes = self
            .payload_bytes
            .unwrap_or_else(|| call_payload_bytes_max(base));
        let pieces_max = PAYLOAD_PIECES_MAX.min(CALL_PIECES_MAX / payloads).max(1);
        // A profile with bulk buffers sets their size. Without, a buffer holds a whole payload: a payload of 1 MiB
        // moves a tenth faster in one buffer than in pieces of 64 KiB.
        let wanted = if base.bulk_buffers == 0 {
            payload_bytes.clamp(1, BUFFER_BYTES_MAX)
        } else {
            base.bulk_buffer_bytes.into()
        };
        let bytes = payload_bytes.div_ceil(pieces_max.into()).max(wanted);
        let bytes = bytes.next_multiple_of(PAGE_BYTES);
        let pieces = u32::try_from(payload_bytes.div_ceil(bytes)).unwrap_or(u32::MAX);
        // Buffers for the outstanding calls and the one that is being made ...
        let held = calls
            .saturating_add(1)
            .saturating_mul(payloads.saturating_mul(pieces.max(1)));
        // ... plus the quarter of all buffers that the core reserves for the calls of peers.
        let kept_back = (held / 3 + 1).min(BUFFERS_KEPT_BACK_MAX);
        let buffers = held.saturating_add(kept_back).min(BUFFERS_MAX);
        settings.bulk_buffers = Some(buffers.max(base.bulk_buffers));
        settings.bulk_buffer_bytes = Some(u32::try_from(bytes).unwrap_or(u32::MAX));
        settings.bulk_calls_max = Some(calls.max(base.bulk_calls_max).min(BULK_CALLS_MAX));
        // A placement segment is a second scatter entry of a Receive, after the inline segment.
        if base.placement_segments == 0 && base.receive_scatter_entries_max > 1 {
            placement(payload_bytes, base, settings);
        }
    }
}

/// Adds a placement segment to each Receive, so that Sends can place payloads. It is as long as a payload, or shorter
/// if that would take too much memory; if not even a page per Receive is affordable, there is none.
fn placement(payload_bytes: u64, base: &Profile, settings: &mut Settings) {
    let connections = settings.connections_max.unwrap_or(base.connections_max);
    let credits = settings
        .credits_per_connection
        .unwrap_or(base.credits_per_connection);
    let of_sizes = Profile {
        connections_max: connections,
        credits_per_connection: credits,
        receives_shared: settings.receives_shared.unwrap_or(base.receives_shared),
        ..base.clone()
    };
    let receives = of_sizes.receives_posted();
    let affordable = (PLACEMENT_BYTES_MAX / receives.max(1)) / PAGE_BYTES * PAGE_BYTES;
    let wanted = payload_bytes.next_multiple_of(PAGE_BYTES);
    let bytes = wanted
        .min(affordable)
        .min(base.placement_segment_bytes.into());
    if bytes >= PAGE_BYTES {
        settings.placement_segments = Some(1);
        settings.placement_segment_bytes = u32::try_from(bytes).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(need: Need) -> Profile {
        need.profile(&ProfileChoice::default(), &Fabric::SHM)
            .unwrap()
            .profile
    }

    #[test]
    fn payloads_beside_their_messages_have_placement_segments_as_far_as_memory_goes() {
        let need = |payload_bytes, connections| Need {
            payload_bytes: Some(payload_bytes),
            connections_per_core: Some(connections),
            bulk: BulkNeed {
                calls: 8,
                payloads: 1,
            },
            ..Need::default()
        };
        let segments = |need| {
            let profile = profile(need);
            (profile.placement_segments, profile.placement_segment_bytes)
        };
        assert_eq!(segments(need(5000, 1)), (1, 8192));
        assert_eq!(segments(need(1 << 20, 1)), (1, 65_536));
        let (count, bytes) = segments(need(65_536, 1000));
        assert_eq!(count, 1);
        assert!((4096..65_536).contains(&bytes) && bytes.is_multiple_of(4096));
        assert_eq!(profile(need(65_536, 60_000)).placement_segments, 0);
        let no_bulk = Need {
            bulk: BulkNeed::default(),
            ..need(65_536, 1)
        };
        let profile = profile(no_bulk);
        assert_eq!((profile.placement_segments, profile.bulk_buffers), (0, 0));
    }

    #[test]
    fn without_needs_the_profile_stands() {
        let base = Profile::by_name("shm").unwrap();
        assert_eq!(profile(Need::default()), base);
    }

    #[test]
    fn many_connections_share_receives_and_depth_is_never_cut() {
        let many = Need {
            connections_per_core: Some(4097),
            cores: 1,
            ..Need::default()
        };
        let chosen = profile(many);
        assert_eq!(
            (chosen.connections_max, chosen.credits_per_connection),
            (4097, 32)
        );
        assert_eq!(chosen.receives_posted(), 3 * 4097 + 64 * 30);
        assert!(chosen.peers_connections_max >= 4097);
        let deep = Need {
            credits: Some(64),
            ..many
        };
        let chosen = profile(deep);
        assert_eq!(chosen.credits_per_connection, 64);
        assert!(chosen.receives_posted() >= 4097 * 64);
        let few = Need {
            connections_per_core: Some(1),
            credits: Some(8),
            cores: 1,
            ..Need::default()
        };
        let chosen = profile(few);
        assert_eq!(
            (chosen.credits_per_connection, chosen.receives_shared),
            (32, 0),
            "as the profile says"
        );
    }

    #[test]
    fn many_credits_raise_the_calls_of_a_core() {
        let with = |credits| {
            let need = Need {
                credits: Some(credits),
                connections_per_core: Some(1),
                ..Need::default()
            };
            profile(need).calls_outstanding_max
        };
        let usual = Profile::by_name("shm").unwrap().calls_outstanding_max;
        assert_eq!([with(64), with(usual)], [usual; 2]);
        assert_eq!([with(5_000), with(60_000)], [5_000, 60_000]);
    }

    #[test]
    fn large_payloads_raise_the_largest_message() {
        let need = Need {
            payload_bytes: Some(8 << 20),
            ..Need::default()
        };
        assert_eq!(profile(need).message_bytes_max, (8 << 20) + 4096);
        let small = Need {
            payload_bytes: Some(64),
            ..Need::default()
        };
        assert_eq!(profile(small).message_bytes_max, (1 << 20) + 4096);
    }

    #[test]
    fn known_load_makes_messages_no_longer_than_it_needs() {
        let known = |payload_bytes| Need {
            payload_bytes: Some(payload_bytes),
            is_known: true,
            ..Need::default()
        };
        let sized = |payload_bytes| profile(known(payload_bytes)).message_bytes_max;
        assert_eq!(sized(0), KNOWN_MESSAGE_BYTES);
        assert_eq!(sized(8 << 20), (8 << 20) + 4096);
        let with = |knob: &str| {
            let set = vec![knob.to_owned()];
            let choice = ProfileChoice { profile: None, set };
            let loaded = known(0).profile(&choice, &Fabric::SHM).unwrap();
            loaded.profile.message_bytes_max
        };
        assert_eq!(with("message_bytes_max=65536"), 65_536);
        assert_eq!(with("receive_buffer_bytes=32768"), 32_768);
    }

    #[test]
    fn the_largest_payload_is_one_that_a_profile_holds_and_one_byte_more_is_not() {
        for (payloads, calls, expected) in [
            (1, 1, 256 << 20),
            (2, 1, 256 << 20),
            (8, 1, (128 << 20) - 512),
            (1, 0, (1 << 30) - 4096),
        ] {
            let most = payload_bytes_max(payloads, calls > 0);
            assert_eq!(most, expected, "{payloads} {calls}");
            let need = |payload_bytes| Need {
                payload_bytes: Some(payload_bytes),
                bulk: BulkNeed { calls, payloads },
                ..Need::default()
            };
            let built = |bytes| need(bytes).profile(&ProfileChoice::default(), &Fabric::SHM);
            assert!(built(most).is_ok(), "{payloads}: {:?}", built(most).err());
            assert!(built(most + 1).is_err(), "{payloads}");
        }
    }

    #[test]
    fn bulk_buffers_hold_the_payloads_of_all_calls_under_way() {
        let need = |payload_bytes, calls, payloads| Need {
            payload_bytes: Some(payload_bytes),
            bulk: BulkNeed { calls, payloads },
            ..Need::default()
        };
        assert_eq!(profile(need(1 << 20, 0, 1)).bulk_buffers, 0, "none wanted");
        for (payload_bytes, calls, payloads, buffer_bytes) in [
            (1, 1, 1, 4096),
            (4096, 1, 1, 4096),
            (5000, 8, 2, 8192),
            (64 << 10, 8, 1, 64 << 10),
            (1 << 20, 8, 8, 1 << 20),
            (8 << 20, 8, 8, 1 << 20),
            (16 << 20, 8, 8, 2 << 20),
            (64 << 20, 2, 1, 4 << 20),
        ] {
            let profile = profile(need(payload_bytes, calls, payloads));
            let words = format!("{payload_bytes} {calls} {payloads}");
            assert_eq!(profile.bulk_buffer_bytes, buffer_bytes, "{words}");
            let pieces = u32::try_from(payload_bytes).unwrap().div_ceil(buffer_bytes);
            assert!(pieces <= PAYLOAD_PIECES_MAX && pieces * payloads <= CALL_PIECES_MAX);
            // A core gives all but a quarter of the buffers to its own calls.
            let given =
                profile.bulk_buffers - (profile.bulk_buffers / 4).min(BUFFERS_KEPT_BACK_MAX);
            assert!(given >= (calls + 1) * payloads * pieces, "{words}: {given}");
        }
        assert_eq!(profile(need(4096, 1000, 1)).bulk_calls_max, 1000);
        assert_eq!(profile(need(4096, 65_536, 1)).bulk_calls_max, 65_535);
    }

    #[test]
    fn bulk_buffers_that_hold_no_call_are_refused() {
        let need = Need {
            payload_bytes: Some(64 << 10),
            bulk: BulkNeed {
                calls: 1,
                payloads: 2,
            },
            ..Need::default()
        };
        let built = |buffers: u32, need: Need| {
            let choice = ProfileChoice {
                set: vec![
                    format!("bulk_buffers={buffers}"),
                    "bulk_buffer_bytes=16384".to_owned(),
                ],
                ..ProfileChoice::default()
            };
            need.profile_of_calls(&choice, &Fabric::SHM)
        };
        for (buffers, given) in [(0, 0), (1, 1), (9, 7)] {
            let failure = built(buffers, need).unwrap_err();
            assert_eq!(failure.status(), crate::exit::Status::Usage);
            let failure = failure.to_string();
            for words in [
                &format!(
                    "of bulk_buffers = {buffers} (command line) a core gives its own calls {given}"
                )[..],
                "each needs 8 bulk buffers of 16 KiB",
                "set it to 10 at least",
            ] {
                assert!(failure.contains(words), "{failure}");
            }
        }
        assert!(built(10, need).is_ok());
        assert!(built(0, Need::default()).is_ok(), "no calls with payloads");
    }

    #[test]
    fn command_line_settings_override_sizing() {
        let need = Need {
            credits: Some(64),
            connections_per_core: Some(8),
            cores: 1,
            ..Need::default()
        };
        let choice = ProfileChoice {
            set: vec![
                "credits_per_connection=5".to_owned(),
                "idle=park".to_owned(),
            ],
            ..ProfileChoice::default()
        };
        let loaded = need.profile(&choice, &Fabric::SHM).unwrap();
        assert_eq!(loaded.profile.credits_per_connection, 5);
        assert_eq!(loaded.profile.idle, rpcrdma_tuning::Idle::Park);
        assert_eq!(
            loaded.profile.connections_max, 8,
            "what is needed, where nothing is set"
        );
    }

    #[test]
    fn an_unknown_profile_is_a_usage_error() {
        let unknown = ProfileChoice {
            profile: Some("nosuch".to_owned()),
            ..ProfileChoice::default()
        };
        let failure = Need::default().profile(&unknown, &Fabric::SHM).unwrap_err();
        assert_eq!(failure.status().code(), 2);
        assert!(failure.to_string().contains("nosuch"), "{failure}");
    }
}
