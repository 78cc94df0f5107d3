//! Texts for the reasons that a CM gives for a rejection (InfiniBand Architecture Specification
//! volume 1, section 12.6.7.2).

/// Nobody listens at that port of the peer.
pub(in crate::verbs) const INVALID_SERVICE_ID: i32 = 8;
/// The peer's application rejected; its private data may have the reason.
pub(in crate::verbs) const CONSUMER_DEFINED: i32 = 28;

/// The text for a CM's reason, with a remedy where there is one. On iWARP the status is a negative
/// `errno` instead of a reason.
pub(in crate::verbs) fn describe(reason: i32) -> String {
    let known = match reason {
        1 => "its device has no queue pair left",
        3 => "its connection manager is out of resources",
        4 => "its application took too long to answer",
        5 => "it does not support the request",
        INVALID_SERVICE_ID => "nobody listens there",
        9 => "it accepts no reliable connections there",
        10 => {
            "it still has an earlier connection of this queue pair (stale connection); connect again"
        }
        12 => {
            "it does not know the address of our port (invalid GID); check its routes and the GID tables of both ends"
        }
        14 => "it does not accept our service level",
        15 => "it does not accept our traffic class; choose another type of service",
        16 => "it does not accept our hop limit",
        24 | 25 => "it redirects connections to another port, which this program does not support",
        26 => "its path MTU is smaller than the requested one",
        27 => "it does not have the requested responder resources; lower read_depth_max",
        // The kernel gives the same reason when the listener at that port is bound to another address.
        CONSUMER_DEFINED => {
            "its application rejected it without a reason that we know, or listens only on other addresses of the host"
        }
        29 => "it does not accept our RNR retry count",
        _ if reason < 0 => {
            return std::io::Error::from_raw_os_error(reason.saturating_neg()).to_string();
        }
        _ => return format!("its connection manager gave reason {reason}"),
    };
    known.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_and_errors_are_distinguished() {
        assert_eq!(describe(8), "nobody listens there");
        assert!(describe(10).contains("stale connection"));
        assert!(describe(-libc::ECONNREFUSED).contains("refused"));
        assert!(describe(31).contains("reason 31"));
        // Hostile or broken statuses are printed, not computed with.
        let _ = describe(i32::MIN);
        let _ = describe(i32::MAX);
    }
}
