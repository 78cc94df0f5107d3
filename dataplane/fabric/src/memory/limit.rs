//! The limit of memory for this process.

use std::path::Path;

/// The most memory that this process can have, not counting what other processes use, and the source of this limit: the
/// machine, or a control group of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes, without swap space: a core must not wait for a disk.
    pub bytes: u64,
    /// Text for messages, after a number of MiB: whose memory it is.
    pub of: &'static str,
}

impl MemoryLimit {
    /// Reads `/proc/meminfo` and the control groups of this process, version 1 or 2; `None` if they cannot be read.
    #[must_use]
    pub fn find() -> Option<Self> {
        Self::below(Path::new("/"))
    }

    fn below(root: &Path) -> Option<Self> {
        let told = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
        let machine = Self {
            bytes: field_bytes(&told, "MemTotal")?,
            of: "MiB of memory in this machine",
        };
        // An arena may be in hugepages, which the memory limits of control groups do not count.
        let huge = field_bytes(&told, "Hugetlb").unwrap_or(0);
        let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let limits = groups.lines().flat_map(|line| limits_of(root, line));
        let group = limits.min().map(|bytes| Self {
            bytes: bytes.saturating_add(huge),
            of: "MiB that the control group of this process may have, and its hugepages",
        });
        let group = group.filter(|group| group.bytes < machine.bytes);
        Some(group.unwrap_or(machine))
    }
}

/// A field of `/proc/meminfo`.
fn field_bytes(told: &str, name: &str) -> Option<u64> {
    let value = told
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// The limits of the control group in this line of `/proc/self/cgroup`, and of its parents: all of them apply.
fn limits_of(root: &Path, line: &str) -> Vec<u64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
        return Vec::new();
    };
    let (folder, file) = match controllers {
        "" => ("sys/fs/cgroup", "memory.max"),
        "memory" => ("sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        _ => return Vec::new(),
    };
    let limit = |group: &Path| {
        let group = group.strip_prefix("/").ok()?;
        let text = std::fs::read_to_string(root.join(folder).join(group).join(file)).ok()?;
        // Without a limit, version 2 has the text `max`, and version 1 a number beyond all memory.
        text.trim().parse().ok()
    };
    Path::new(path).ancestors().filter_map(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A machine of 8 GiB, 1 GiB of it hugepages, on which these files say more; removed when the test ends.
    struct Machine(std::path::PathBuf);

    impl Machine {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let name = format!("rpcrdma-limit-{name}-{}", std::process::id());
            let machine = Self(std::env::temp_dir().join(name));
            let told = "MemTotal:        8388608 kB\nMemFree: 1 kB\nHugetlb:         1048576 kB\n";
            for (file, text) in files.iter().chain(&[("proc/meminfo", told)]) {
                let path = machine.0.join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            machine
        }

        fn limit(&self) -> (u64, bool) {
            let limit = MemoryLimit::below(&self.0).expect("it says how much it has");
            (limit.bytes, limit.of.contains("control group"))
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn without_a_lower_limit_of_its_group_a_process_has_the_machine() {
        let group = ("proc/self/cgroup", "0::/a\n");
        let unlimited = "9223372036854771712\n";
        for (name, files) in [
            ("none", &[][..]),
            ("max", &[group, ("sys/fs/cgroup/a/memory.max", "max\n")]),
            (
                "high",
                &[group, ("sys/fs/cgroup/a/memory.max", "17179869184\n")],
            ),
            (
                "gone",
                &[("proc/self/cgroup", "0::/../outside\nnonsense\n")],
            ),
            (
                "one",
                &[
                    ("proc/self/cgroup", "4:memory:/a\n0::/\n"),
                    ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", unlimited),
                ],
            ),
        ] {
            assert_eq!(
                Machine::new(name, files).limit(),
                (8 * GIB, false),
                "{name}"
            );
        }
        assert_eq!(MemoryLimit::below(Path::new("/no/such/machine")), None);
    }

    #[test]
    fn the_lowest_limit_of_the_groups_around_a_process_holds() {
        let two = [
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "3221225472\n"),
            ("sys/fs/cgroup/a/memory.max", "2147483648\n"),
        ];
        // And hugepages come on top.
        assert_eq!(Machine::new("two", &two).limit(), (3 * GIB, true));
        let container = [
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "1073741824\n"),
        ];
        assert_eq!(
            Machine::new("container", &container).limit(),
            (2 * GIB, true)
        );
        // The path is that of the host, and what is mounted begins with the container.
        let first = [
            ("proc/self/cgroup", "7:cpu,cpuacct:/x\n4:memory:/docker/x\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "4294967296\n"),
            ("sys/fs/cgroup/cpu,cpuacct/x/memory.limit_in_bytes", "1\n"),
        ];
        assert_eq!(Machine::new("first", &first).limit(), (5 * GIB, true));
    }
}
