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
}
