//! The processors that tests may use, for those programs that need to know.

/// Their numbers, in rising order.
pub(crate) fn cores_usable() -> Vec<usize> {
    let usable = core_affinity::get_core_ids().expect("at least one core");
    let mut usable: Vec<usize> = usable.into_iter().map(|core| core.id).collect();
    usable.sort_unstable();
    usable
}
