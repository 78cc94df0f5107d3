//! The machine's hugepages, transparent hugepages and available memory.

use std::path::{Path, PathBuf};

pub(super) const HUGE_PAGE_BYTES: u64 = 2 << 20;
pub(crate) const ORDINARY_PAGE_BYTES: u64 = 4096;

const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages";
const TRANSPARENT: &str = "/sys/kernel/mm/transparent_hugepage";

fn read(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn read_number(path: impl AsRef<Path>) -> Option<u64> {
    read(path)?.trim().parse().ok()
}

/// The kernel's folder for hugepages of this size.
fn folder(page_bytes: u64) -> PathBuf {
    Path::new(HUGE_PAGES).join(format!("hugepages-{}kB", page_bytes >> 10))
}

/// A size as text, such as `2 MiB`.
fn size_name(page_bytes: u64) -> String {
    let gib = page_bytes >> 30;
    if gib > 0 {
        format!("{gib} GiB")
    } else {
        format!("{} MiB", page_bytes >> 20)
    }
}

/// The reserved hugepages of one size, machine-wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HugePageCounts {
    pub(super) total: u64,
    /// Pages that are neither used nor reserved by a mapping.
    pub(super) available: u64,
}

impl HugePageCounts {
    /// `None` if the kernel has no hugepages of this size.
    pub(super) fn read(page_bytes: u64) -> Option<Self> {
        let count = |name: &str| read_number(folder(page_bytes).join(name));
        let promised = count("resv_hugepages").unwrap_or(0);
        Some(Self {
            total: count("nr_hugepages")?,
            available: count("free_hugepages")?.saturating_sub(promised),
        })
    }
}

/// Why there are no hugepages of this size for `bytes` bytes, and how to fix it.
pub(super) fn no_hugepages(bytes: u64, page_bytes: u64) -> String {
    match HugePageCounts::read(page_bytes) {
        Some(counts) => explain_shortage(bytes, page_bytes, counts),
        None => format!(
            "an arena of {bytes} bytes is not in hugepages: this kernel has none of {} ({} does \
             not exist)",
            size_name(page_bytes),
            folder(page_bytes).display()
        ),
    }
}

fn explain_shortage(bytes: u64, page_bytes: u64, counts: HugePageCounts) -> String {
    let needed = bytes.div_ceil(page_bytes);
    let size = size_name(page_bytes);
    let HugePageCounts { total, available } = counts;
    if available >= needed {
        // The kernel's file is named like `hugetlb.2MB.max`.
        let group = size.replace(" Mi", "M").replace(" Gi", "G");
        return format!(
            "an arena of {bytes} bytes needs {needed} hugepages of {size}, and {available} are \
             free, but the system refused: a limit of the control group is the likely cause; see \
             hugetlb.{group}.max of this process's group"
        );
    }
    let enough = total.saturating_add(needed - available);
    format!(
        "an arena of {bytes} bytes needs {needed} hugepages of {size}, and {available} are free; \
         reserve more with: echo {enough} | sudo tee {}/nr_hugepages",
        folder(page_bytes).display()
    )
}

/// The size of hugepages that private arenas get, which is the system's default. `None` where the
/// kernel has no hugepages.
pub(super) fn default_huge_page_bytes() -> Option<u64> {
    field_bytes(&read("/proc/meminfo")?, "Hugepagesize:").filter(|bytes| bytes.is_power_of_two())
}

/// The kind of memory, for which the kernel has separate settings of transparent hugepages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransparentKind {
    /// Of memfd memory.
    Shared,
    /// Of anonymous memory.
    Private,
}

impl TransparentKind {
    fn file(self) -> &'static str {
        match self {
            Self::Shared => "shmem_enabled",
            Self::Private => "enabled",
        }
    }

    fn words_that_allow(self) -> &'static [&'static str] {
        match self {
            Self::Shared => &["always", "within_size", "advise", "force"],
            Self::Private => &["always", "madvise"],
        }
    }

    /// Whether the kernel joins pages to hugepages on request.
    pub(super) fn is_allowed(self) -> bool {
        read(Path::new(TRANSPARENT).join(self.file()))
            .and_then(|text| chosen_word(&text).map(str::to_owned))
            .is_some_and(|word| self.words_that_allow().contains(&word.as_str()))
    }

    /// A text with the command that allows transparent hugepages.
    pub(super) fn how_to_allow(self) -> String {
        let word = match self {
            Self::Shared => "advise",
            Self::Private => "madvise",
        };
        format!(
            "transparent hugepages are off as well; allow them with: \
             echo {word} | sudo tee {TRANSPARENT}/{}",
            self.file()
        )
    }

    /// The bytes of the mapping at `start` that are in transparent hugepages.
    pub(super) fn bytes_at(self, start: usize) -> u64 {
        let key = match self {
            Self::Shared => "ShmemPmdMapped:",
            Self::Private => "AnonHugePages:",
        };
        read("/proc/self/smaps").map_or(0, |text| smaps_field(&text, start, key))
    }
}

/// The word in brackets, which is the active setting.
fn chosen_word(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0)
}

/// The value of `key` in a text of lines like `MemAvailable:  123 kB`, in bytes.
fn field_bytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The value of `key` in the entry of `/proc/self/smaps` whose range contains `address`.
pub(super) fn smaps_field(text: &str, address: usize, key: &str) -> u64 {
    let mut inside = false;
    for line in text.lines() {
        if let Some((from, to)) = smaps_range(line) {
            inside = (from..to).contains(&address);
        } else if inside && line.starts_with(key) {
            return field_bytes(line, key).unwrap_or(0);
        }
    }
    0
}

fn smaps_range(line: &str) -> Option<(usize, usize)> {
    let (from, to) = line.split_whitespace().next()?.split_once('-')?;
    let parse = |text| usize::from_str_radix(text, 16).ok();
    Some((parse(from)?, parse(to)?))
}

/// Available memory, and the source of this limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Available {
    pub(super) bytes: u64,
    pub(super) source: String,
}

/// The ordinary memory that this process may still take before the kernel kills a process: that of the machine, or what
/// its control groups leave. `None` if none of this can be read.
pub(super) fn available() -> Option<Available> {
    let machine = read("/proc/meminfo")
        .and_then(|text| field_bytes(&text, "MemAvailable:"))
        .map(|bytes| Available {
            bytes,
            source: "MemAvailable of this machine".to_owned(),
        });
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let groups = groups.lines().filter_map(group_available);
    machine
        .into_iter()
        .chain(groups)
        .min_by_key(|available| available.bytes)
}

/// The memory left by the control group of one line of `/proc/self/cgroup`, and by its parents.
fn group_available(line: &str) -> Option<Available> {
    let mut parts = line.splitn(3, ':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let (root, files): (&str, [&str; 2]) = if number == "0" && controllers.is_empty() {
        ("/sys/fs/cgroup", ["memory.max", "memory.current"])
    } else if controllers.split(',').any(|name| name == "memory") {
        (
            "/sys/fs/cgroup/memory",
            ["memory.limit_in_bytes", "memory.usage_in_bytes"],
        )
    } else {
        return None;
    };
    let group: PathBuf = Path::new(root).join(path.trim_start_matches('/'));
    let up_to_root = group.ancestors().filter(|group| group.starts_with(root));
    up_to_root
        .filter_map(|group| {
            // `max` means no limit, and does not parse as a number.
            let limit = read_number(group.join(files[0]))?;
            let used = read_number(group.join(files[1]))?;
            // The kernel reclaims inactive file pages before it kills a process.
            let gives_way = read(group.join("memory.stat"))
                .and_then(|text| stat_number(&text, "inactive_file"))
                .unwrap_or(0);
            Some(Available {
                bytes: limit.saturating_sub(used.saturating_sub(gives_way)),
                source: format!("the limit {}", group.join(files[0]).display()),
            })
        })
        .min_by_key(|available| available.bytes)
}

fn stat_number(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then(|| value.trim().parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortages_are_explained_with_the_command_that_fixes_them() {
        let counts = HugePageCounts {
            total: 10,
            available: 3,
        };
        let text = explain_shortage(16 << 20, HUGE_PAGE_BYTES, counts);
        assert!(text.contains("needs 8 hugepages"), "{text}");
        assert!(text.contains("3 are free"), "{text}");
        // Five are missing beyond the ten that others use in part.
        assert!(text.contains("echo 15 | sudo tee /sys/kernel"), "{text}");
        let text = explain_shortage(4 << 20, HUGE_PAGE_BYTES, counts);
        assert!(text.contains("control group"), "{text}");
        assert!(text.contains("hugetlb.2MB.max"), "{text}");
        assert!(!text.contains("echo"), "{text}");
        let text = explain_shortage(5 << 30, 1 << 30, counts);
        assert!(
            text.contains("needs 5 hugepages of 1 GiB, and 3 are free"),
            "{text}"
        );
        let command =
            "echo 12 | sudo tee /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages";
        assert!(text.contains(command), "{text}");
    }

    #[test]
    fn fields_of_meminfo() {
        let text = "MemTotal:  100 kB\nMemAvailable:     42 kB\nHugepagesize:    2048 kB\nX: 3\n";
        assert_eq!(field_bytes(text, "MemAvailable:"), Some(42 * 1024));
        assert_eq!(field_bytes(text, "Hugepagesize:"), Some(2 << 20));
        assert_eq!(field_bytes(text, "X:"), None);
        assert_eq!(field_bytes(text, "MemFree:"), None);
        assert_eq!(field_bytes("A: 99999999999999999999 kB", "A:"), None);
        assert_eq!(field_bytes("A: 18446744073709551615 kB", "A:"), None);
    }

    #[test]
    fn words_in_brackets() {
        assert_eq!(chosen_word("always [madvise] never\n"), Some("madvise"));
        assert_eq!(chosen_word("always madvise never"), None);
        assert_eq!(chosen_word("[x"), None);
    }

    #[test]
    fn the_entry_of_an_address_is_found_in_smaps() {
        let text = "\
1000-3000 rw-s 00000000 00:01 1 /memfd:a (deleted)
Size:                  8 kB
ShmemPmdMapped:        0 kB
3000-9000 rw-s 00000000 00:01 2 /memfd:b (deleted)
Size:                 24 kB
ShmemPmdMapped:     2048 kB
9000-a000 rw-p 00000000 00:00 0
Size:                  4 kB
";
        assert_eq!(smaps_field(text, 0x1000, "ShmemPmdMapped:"), 0);
        assert_eq!(smaps_field(text, 0x3000, "ShmemPmdMapped:"), 2 << 20);
        assert_eq!(smaps_field(text, 0x8fff, "ShmemPmdMapped:"), 2 << 20);
        assert_eq!(smaps_field(text, 0x9000, "ShmemPmdMapped:"), 0);
        assert_eq!(smaps_field(text, 0xffff, "ShmemPmdMapped:"), 0);
    }

    #[test]
    fn memory_is_available_here() {
        let available = available().expect("Linux tells");
        assert!(available.bytes > 0);
        assert!(!available.source.is_empty());
    }

    #[test]
    fn lines_of_the_group_file_that_are_not_about_memory() {
        assert_eq!(group_available(""), None);
        assert_eq!(group_available("8:pids:/"), None);
        assert_eq!(
            group_available("0::/no/such/group/anywhere"),
            group_available("0::/")
        );
    }

    #[test]
    fn numbers_of_memory_stat() {
        let text = "anon 1\ninactive_file 77\nactive_file 5\n";
        assert_eq!(stat_number(text, "inactive_file"), Some(77));
        assert_eq!(stat_number(text, "file"), None);
    }
}
