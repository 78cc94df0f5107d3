//! What the devices of a node lack of its profile.

use rpcrdma_fabric::interface::Attributes;

/// Which cores have fewer memory windows than the `wanted` ones, because the device has no more.
pub(super) fn few_windows(attributes: &[Attributes], wanted: u32) -> impl Iterator<Item = String> {
    let cores = attributes.iter().enumerate();
    let few = cores.filter(move |(_, it)| it.windows_max < wanted);
    few.map(move |(core, Attributes { windows_max, device, .. })| {
        let what = match windows_max {
            0 => "its bulk data stays in messages and Sends",
            _ => "calls that expose memory wait for each other",
        };
        format!(
            "core {core} has {windows_max} of the {wanted} memory windows that it wants (bulk_buffers), and {device} has no \
             more: {what}"
        )
    })
}

/// That cores are in no thread domain although the profile has them, and the reason of the first.
pub(super) fn no_thread_domains(attributes: &[Attributes]) -> Option<String> {
    let refused = |it: &&Attributes| it.thread_domain_refused.is_some();
    let count = attributes.iter().filter(refused).count();
    let Attributes {
        device,
        thread_domain_refused,
        ..
    } = attributes.iter().find(refused)?;
    let (reason, cores) = (thread_domain_refused.as_deref()?, attributes.len());
    Some(format!(
        "{count} of {cores} cores have no thread domain (thread_domains) on {device}, and take the locks of its library: {reason}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Node;

    #[test]
    fn cores_with_fewer_windows_than_they_want_are_named() {
        let address = format!("shm:few-windows-{}", std::process::id());
        let node = Node::builder().knob("bulk_buffers=8").start(&address);
        let node = node.expect("a node on shm");
        assert_eq!(node.warnings(), [""; 0]);
        let of_shm = &node.control().attributes()[0];
        let with = |windows_max| Attributes {
            windows_max,
            ..of_shm.clone()
        };
        let found: Vec<String> = few_windows(&[with(8), with(3), with(0)], 8).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("core 1 has 3 of the 8 memory windows"));
        assert!(found[1].contains("stays in messages"), "{found:?}");
    }

    #[test]
    fn cores_without_the_thread_domains_of_the_profile_are_counted() {
        let address = format!("shm:no-thread-domains-{}", std::process::id());
        let node = Node::builder()
            .knob("thread_domains=prefer")
            .start(&address);
        let node = node.expect("a node on shm");
        assert_eq!(node.warnings(), [""; 0], "they have no meaning on shm");
        let has = node.control().attributes()[0].clone();
        let lacks = Attributes {
            device: "rxe0".to_owned(),
            rails: 1,
            thread_domain_refused: Some("the device refused a thread domain".to_owned()),
            ..has.clone()
        };
        assert_eq!(no_thread_domains(&[has.clone(), has.clone()]), None);
        let found = no_thread_domains(&[has, lacks.clone(), lacks]).expect("a warning");
        assert!(
            found.starts_with("2 of 3 cores have no thread domain"),
            "{found}"
        );
        assert!(found.contains("on rxe0"), "{found}");
        assert!(
            found.ends_with("the device refused a thread domain"),
            "{found}"
        );
    }
}
