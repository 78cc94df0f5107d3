//! The reasons that a CM gives for a rejection, for people (InfiniBand Architecture Specification
//! volume 1, section 12.6.7.2).

/// The peer's CM knows nobody at that port: nobody listens.
pub(in crate::verbs) const INVALID_SERVICE_ID: i32 = 8;
/// The application at the peer rejected; its private data says why.
pub(in crate::verbs) const CONSUMER_DEFINED: i32 = 28;

/// What a CM's reason means, and what to do where there is something to do. iWARP has no reasons:
/// the status is a negative `errno` then.
pub(in crate::verbs) fn describe(reason: i32) -> String {
    let known = match reason {
        1 => "its device has no queue pair left",
        3 => "its connection manager is out of resources",
        4 => "its application took too long to answer",
        5 => "it does not support the request",
        INVALID_SERVICE_ID => "nobody listens there",
        9 => "it takes no reliable connections there",
        10 => {
            "it still remembers an earlier connection of this queue pair (stale connection); connect again"
        }
        12 => {
            "the address of our port is unknown to it (invalid GID); its routes and the GID tables of both ends must fit"
        }
        14 => "it does not take our service level",
        15 => "it does not take our traffic class; choose another type of service",
        16 => "it does not take our hop limit",
        24 | 25 => "it redirects connections to another port, which is not followed",
        26 => "its path MTU is smaller than the one that was asked for",
        27 => "it has not the responder resources that were asked for; lower read_depth_max",
        // The kernel says the same of a listener at that port that is bound to another address.
        CONSUMER_DEFINED => {
            "its application rejected it without a reason that we know, or listens at other addresses of the host only"
        }
        29 => "it does not take our RNR retry count",
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
    fn reasons_and_errors_are_told_apart() {
        assert_eq!(describe(8), "nobody listens there");
        assert!(describe(10).contains("stale connection"));
        assert!(describe(-libc::ECONNREFUSED).contains("refused"));
        assert!(describe(31).contains("reason 31"));
        // Hostile or broken statuses are printed, not computed with.
        let _ = describe(i32::MIN);
        let _ = describe(i32::MAX);
    }
}
