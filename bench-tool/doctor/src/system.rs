//! Reads the files with which the kernel describes a machine. The root folder can be another one, for tests.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use crate::cores::core_list;

/// The limit for the length of a file. All files that the examination reads are shorter.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// `/proc`, `/sys` and `/dev`, or a copy of them.
#[derive(Clone, Debug)]
pub struct System {
    root: PathBuf,
}

/// A resource limit of this process; `None` means unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The limit in force.
    pub soft: Option<u64>,
    /// The largest soft limit that this process may set.
    pub hard: Option<u64>,
}

impl System {
    /// The files below `root`. `/` is this machine.
    #[must_use]
    pub fn below(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// Whether the files are those of this machine and not a copy. Only then can devices be opened.
    #[must_use]
    pub fn is_real(&self) -> bool {
        self.root == Path::new("/")
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The root folder of the files.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The text of a file without the white space around it; `None` if the file cannot be read or is not UTF-8.
    /// Control characters are replaced, because they can move the cursor of a terminal.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<String> {
        let text = String::from_utf8(self.bytes(path)?).ok()?;
        let harmless = |character: char| match character {
            '\n' | '\t' => character,
            other if other.is_control() => char::REPLACEMENT_CHARACTER,
            other => other,
        };
        Some(text.trim().chars().map(harmless).collect())
    }

    /// The contents of a file, up to `FILE_BYTES_MAX`; `None` if it cannot be read.
    #[must_use]
    pub fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        let path = self.path(path);
        // Opening a named pipe waits for its other end.
        if !fs::metadata(&path).ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        let file = fs::File::open(path).ok()?;
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// The file name of the target of a link.
    #[must_use]
    pub fn link_name(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        target
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
    }

    /// The advice for a machine without an RDMA device: the command for soft-RoCE, or another kernel if this one has
    /// no soft-RoCE.
    #[must_use]
    pub fn way_to_soft_roce(&self) -> String {
        let release = self.text("/proc/sys/kernel/osrelease").unwrap_or_default();
        let lists = ["modules.dep", "modules.builtin"];
        let mut lists = lists
            .iter()
            .filter_map(|list| self.text(&format!("/lib/modules/{release}/{list}")))
            .peekable();
        let names = self.names("/sys/class/net");
        let is_hardware = |name: &&String| self.exists(&format!("/sys/class/net/{name}/device"));
        let netdev = names
            .iter()
            .find(is_hardware)
            .or_else(|| names.iter().find(|name| *name != "lo"));
        let netdev = netdev.map_or("NETDEV", String::as_str);
        let command = format!(
            "rdma link add rxe0 type rxe netdev {netdev}   # soft-RoCE, over any network device"
        );
        if lists.peek().is_none() {
            // Most containers have no lists of modules.
            format!(
                "{command}; where the kernel has it (CONFIG_RDMA_RXE), which cannot be read here"
            )
        } else if lists.any(|modules| modules.contains("/rdma_rxe.ko")) {
            command
        } else {
            "run a kernel with CONFIG_RDMA_RXE (soft-RoCE, over any network device): this one has no such module"
                .to_owned()
        }
    }

    /// The command that lets a user open the file of a device: by its group if the group may open it, otherwise by its
    /// mode.
    #[must_use]
    pub fn way_to_open(&self, file: &str) -> String {
        const GROUP: u32 = 0o060;
        let by_group = fs::metadata(self.path(file))
            .is_ok_and(|found| found.mode() & GROUP == GROUP && found.gid() != 0);
        if by_group {
            format!("usermod -aG $(stat -c %G {file}) $USER   # by sudo; and log in again")
        } else {
            format!("chmod a+rw {file}   # lasting: MODE=\"0666\" in a udev rule")
        }
    }

    /// An environment variable of this process at its start.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<String> {
        let environment = self.bytes("/proc/self/environ")?;
        environment.split(|byte| *byte == 0).find_map(|variable| {
            let (key, value) = std::str::from_utf8(variable).ok()?.split_once('=')?;
            (key == name).then(|| value.to_owned())
        })
    }

    /// The name after the number in a file with a text like `4: ACTIVE`.
    #[must_use]
    pub fn numbered_name(&self, path: &str) -> Option<String> {
        let text = self.text(path)?;
        let name = text.split_once(": ").map(|(_, name)| name.to_owned());
        Some(name.unwrap_or(text))
    }

    /// The number in a file.
    #[must_use]
    pub fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// The names in a directory, sorted; empty if the directory cannot be read.
    #[must_use]
    pub fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(path)) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| !name.chars().any(char::is_control))
            .collect();
        names.sort_unstable();
        names
    }

    /// Whether the path exists.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Whether this process may read and write the path.
    #[must_use]
    pub fn is_usable(&self, path: &str) -> bool {
        rustix::fs::access(self.path(path), Access::READ_OK | Access::WRITE_OK).is_ok()
    }

    /// The list of cores in a file (`0-3,8`), empty for an empty file; `None` if the file cannot be read or holds no
    /// list.
    #[must_use]
    pub fn cores(&self, path: &str) -> Option<Vec<usize>> {
        let text = self.text(path)?;
        if text.is_empty() {
            return Some(Vec::new());
        }
        core_list(&text).ok().map(|list| list.0)
    }

    /// The online cores that this process may use. The list of the kernel also has cores that are offline.
    #[must_use]
    pub fn cores_allowed(&self) -> Option<Vec<usize>> {
        let list = self.status("Cpus_allowed_list")?;
        let mut cores = core_list(&list).ok()?.0;
        let online = self.cores("/sys/devices/system/cpu/online");
        if let Some(online) = online.filter(|online| !online.is_empty()) {
            cores.retain(|core| online.contains(core));
        }
        Some(cores)
    }

    /// A field of `/proc/self/status`.
    #[must_use]
    pub fn status(&self, name: &str) -> Option<String> {
        field(&self.text("/proc/self/status")?, name)
    }

    /// A field of `/proc/meminfo`, in bytes.
    #[must_use]
    pub fn meminfo_bytes(&self, name: &str) -> Option<u64> {
        let value = field(&self.text("/proc/meminfo")?, name)?;
        value
            .strip_suffix("kB")?
            .trim()
            .parse::<u64>()
            .ok()?
            .checked_mul(1024)
    }

    /// Whether the first processor in `/proc/cpuinfo` has a flag; `None` if the file has no flags.
    #[must_use]
    pub fn has_cpu_flag(&self, flag: &str) -> Option<bool> {
        let flags = field(&self.text("/proc/cpuinfo")?, "flags")?;
        Some(flags.split(' ').any(|found| found == flag))
    }

    /// A limit in `/proc/self/limits`, for example `Max open files`.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<Limit> {
        let text = self.text("/proc/self/limits")?;
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        let mut words = rest.split_whitespace().map(|word| match word {
            "unlimited" => Some(None),
            number => number.parse().ok().map(Some),
        });
        Some(Limit {
            soft: words.next()??,
            hard: words.next()??,
        })
    }
}

/// The value of the first line `name: value`. White space may follow the name, as in `/proc/cpuinfo`.
pub(crate) fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

/// Reads a decimal number in thousandths: `2.5` is 2500. Decimals after the third are ignored.
pub(crate) fn thousandths(text: &str) -> Option<u64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let decimals = decimals.get(..3).unwrap_or(decimals);
    let scale = 10_u64.checked_pow(3_u32.checked_sub(u32::try_from(decimals.len()).ok()?)?)?;
    let below = match decimals {
        "" => 0,
        digits => digits.parse::<u64>().ok()?.checked_mul(scale)?,
    };
    whole
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1000)?
        .checked_add(below)
}

/// The word in brackets: `madvise` for `always [madvise] never`.
#[must_use]
pub fn chosen_of_brackets(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    let (chosen, _) = rest.split_once(']')?;
    Some(chosen.to_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use rpcrdma_testkit::Folder;

    use super::*;

    /// A machine made of files, in a folder that goes with it.
    pub(crate) struct FakeMachine(Folder);

    /// Files of a machine on which everything is as it should be; it has no RDMA device.
    const GOOD: &str = "\
proc/sys/kernel/osrelease 6.12.3
lib/modules/6.12.3/modules.dep kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko.xz: kernel/net/ipv4/udp_tunnel.ko.xz
proc/self/cgroup 0::/user.slice
sys/fs/cgroup/user.slice/cpu.max max 100000
proc/stat cpu  1000 0 1000 98000 0 0 0 0 0 0
CPU/online 0-3
CPU/isolated 2-3
CPU/nohz_full 2-3
CLOCK/current_clocksource tsc
sys/kernel/mm/transparent_hugepage/enabled always [madvise] never
sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages 4096
sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages 4096
sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages 0";

    /// The same of files with several lines.
    const GOOD_LINES: [(&str, &str); 4] = [
        (
            "proc/self/limits",
            "Limit   Soft Limit  Hard Limit  Units\n\
             Max open files            1024   1048576   files\n\
             Max locked memory         unlimited  unlimited  bytes",
        ),
        (
            "proc/self/status",
            "Name:\tx\nCapEff:\t0000000000000000\nCpus_allowed_list:\t0-3",
        ),
        (
            "proc/meminfo",
            "MemTotal: 16000000 kB\nMemAvailable: 12000000 kB",
        ),
        (
            "proc/cpuinfo",
            "processor\t: 0\nflags\t\t: fpu constant_tsc nonstop_tsc",
        ),
    ];

    /// Short names of folders that tests have in their paths, at the front.
    const FOLDERS: [(&str, &str); 5] = [
        ("PORT/", "sys/class/infiniband/mlx5_0/ports/1/"),
        ("DEVICE/", "sys/class/infiniband/mlx5_0/"),
        ("CPU/", "sys/devices/system/cpu/"),
        ("NODE/", "sys/devices/system/node/"),
        ("CLOCK/", "sys/devices/system/clocksource/clocksource0/"),
    ];

    impl FakeMachine {
        /// A machine of which nothing is known.
        pub(crate) fn empty() -> Self {
            Self(Folder::new("doctor"))
        }

        /// A machine on which everything is as it should be; it has no RDMA device.
        pub(crate) fn good() -> Self {
            let machine = Self::empty();
            machine.set_all(GOOD);
            for (path, text) in GOOD_LINES {
                machine.set(path, text);
            }
            machine
        }

        /// Where a file is; what it begins with may be one of [`FOLDERS`].
        pub(crate) fn path(&self, path: &str) -> PathBuf {
            let mut folders = FOLDERS.iter();
            let long = folders.find_map(|(name, folder)| {
                let rest = path.strip_prefix(name)?;
                Some(self.0.join(folder).join(rest))
            });
            long.unwrap_or_else(|| self.0.join(path))
        }

        /// Writes a file.
        pub(crate) fn set(&self, path: &str, text: &str) {
            self.set_bytes(path, format!("{text}\n").as_bytes());
        }

        /// Writes files: on each line there is a path, and behind it what the file holds.
        pub(crate) fn set_all(&self, files: &str) {
            for line in files.lines() {
                let (path, text) = line.split_once(' ').unwrap_or((line, ""));
                self.set(path, text);
            }
        }

        /// Writes a file that holds no text.
        pub(crate) fn set_bytes(&self, path: &str, bytes: &[u8]) {
            let path = self.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }

        /// Takes a file away.
        pub(crate) fn remove(&self, path: &str) {
            fs::remove_file(self.path(path)).unwrap();
        }

        /// Makes a link that leads to a folder of that name, somewhere.
        pub(crate) fn link(&self, path: &str, name: &str) {
            let path = self.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(Path::new("../..").join(name), path).unwrap();
        }

        pub(crate) fn system(&self) -> System {
            System::below(&self.0)
        }

        pub(crate) fn root(&self) -> &Path {
            &self.0
        }
    }

    #[test]
    fn files_are_read_below_the_root() {
        let machine = FakeMachine::good();
        let system = machine.system();
        assert!(!system.is_real() && System::below(Path::new("/")).is_real());
        assert_eq!(
            system.number("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"),
            Some(4096)
        );
        assert_eq!(
            system.cores("/sys/devices/system/cpu/isolated"),
            Some(vec![2, 3])
        );
        assert_eq!(system.status("Cpus_allowed_list").as_deref(), Some("0-3"));
        assert_eq!(system.cores_allowed(), Some(vec![0, 1, 2, 3]));
        machine.set("sys/devices/system/cpu/online", "0,2-7");
        assert_eq!(system.cores_allowed(), Some(vec![0, 2, 3]));
        assert_eq!(
            system.meminfo_bytes("MemAvailable"),
            Some(12_000_000 * 1024)
        );
        assert_eq!(system.has_cpu_flag("nonstop_tsc"), Some(true));
        assert_eq!(system.has_cpu_flag("hypervisor"), Some(false));
        assert_eq!(
            system.names("/sys/kernel/mm/hugepages"),
            ["hugepages-2048kB"]
        );
        let (open, locked) = (
            system.limit("Max open files"),
            system.limit("Max locked memory"),
        );
        assert_eq!(
            open,
            Some(Limit {
                soft: Some(1024),
                hard: Some(1 << 20)
            })
        );
        assert_eq!(
            locked,
            Some(Limit {
                soft: None,
                hard: None
            })
        );
    }

    #[test]
    fn files_that_hold_no_text_and_names_that_move_a_cursor_are_kept_off() {
        let machine = FakeMachine::empty();
        let system = machine.system();
        machine.set_bytes("proc/a", b"\xff\xfe\x00");
        assert_eq!(
            (
                system.text("/proc/a"),
                system.bytes("/proc/a").unwrap().len()
            ),
            (None, 3)
        );
        machine.set_bytes("proc/b", b"safe\x1b[2Jtext\n");
        assert_eq!(
            system.text("/proc/b").as_deref(),
            Some("safe\u{fffd}[2Jtext")
        );
        machine.set("sys/class/net/\x1b[2J", "");
        machine.set("sys/class/net/lo", "");
        assert_eq!(system.names("/sys/class/net"), ["lo"]);
        assert_eq!(system.bytes("/sys/class/net"), None, "a folder is no file");
        machine.link("sys/class/infiniband/x/device/driver", "mlx5_core");
        let driver = system.link_name("/sys/class/infiniband/x/device/driver");
        assert_eq!(driver.as_deref(), Some("mlx5_core"));
        assert_eq!(system.link_name("/proc/a"), None);
        machine.set_bytes("proc/self/environ", b"A=1\0\xff=2\0AB=3=4\0C");
        let variable = |name| system.variable(name);
        assert_eq!(variable("AB").as_deref(), Some("3=4"));
        assert_eq!((variable("B"), variable("C")), (None, None));
    }

    #[test]
    fn soft_roce_is_proposed_where_the_kernel_has_it() {
        let machine = FakeMachine::empty();
        let way = || machine.system().way_to_soft_roce();
        let unknown = way();
        assert!(unknown.starts_with("rdma link add rxe0 type rxe netdev NETDEV "));
        assert!(unknown.ends_with("cannot be read here"), "{unknown}");
        machine.set("proc/sys/kernel/osrelease", "6.1.0");
        machine.set("lib/modules/6.1.0/modules.dep", "kernel/fs/nfs/nfs.ko:");
        assert!(way().starts_with("run a kernel with CONFIG_RDMA_RXE "));
        machine.set(
            "lib/modules/6.1.0/modules.builtin",
            "kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko",
        );
        machine.set("sys/class/net/lo", "");
        machine.set("sys/class/net/eth7", "");
        let here = way();
        assert!(here.starts_with("rdma link add rxe0 type rxe netdev eth7 "));
        assert!(!here.contains("CONFIG"), "{here}");
        machine.set("sys/class/net/bridge0", "");
        machine.remove("sys/class/net/eth7");
        machine.set("sys/class/net/eth7/device/vendor", "");
        assert_eq!(way(), here, "the one that is no hardware comes first");
    }

    #[test]
    fn a_file_is_opened_by_its_group_where_that_may() {
        use std::os::unix::fs::PermissionsExt as _;
        let machine = FakeMachine::empty();
        let file = "dev/infiniband/uverbs0";
        machine.set(file, "");
        let path = machine.root().join(file);
        let own_group = fs::metadata(&path).unwrap().gid();
        for (mode, group_may) in [(0o600, false), (0o640, false), (0o660, own_group != 0)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let way = machine.system().way_to_open("/dev/infiniband/uverbs0");
            assert_eq!(way.starts_with("usermod -aG $(stat "), group_may, "{way}");
            assert_eq!(way.starts_with("chmod a+rw /dev/"), !group_may, "{way}");
        }
    }

    #[test]
    fn numbers_with_decimals_are_thousandths() {
        for (text, number) in [
            ("16.0", Some(16_000)),
            ("2.5", Some(2500)),
            ("100", Some(100_000)),
            ("1.2345", Some(1234)),
            ("", None),
            (".", None),
            ("x.5", None),
            ("5.x", None),
            ("1.ééé", None),
            ("99999999999999999999", None),
            ("18446744073709551615", None),
        ] {
            assert_eq!(thousandths(text), number, "{text}");
        }
    }

    #[test]
    fn missing_or_malformed_system_files_read_as_unknown() {
        let machine = FakeMachine::empty();
        let system = machine.system();
        assert_eq!(system.text("/proc/stat"), None);
        assert_eq!(system.limit("Max open files"), None);
        assert_eq!(system.cores("/sys/devices/system/cpu/isolated"), None);
        assert!(system.names("/sys/class/infiniband").is_empty());
        assert!(!system.exists("/dev/infiniband") && !system.is_usable("/dev/infiniband/rdma_cm"));
        machine.set("proc/meminfo", "MemAvailable: many kB\nMemTotal 12");
        machine.set("proc/self/limits", "Max open files  few  many  files");
        machine.set("sys/devices/system/cpu/isolated", "");
        assert_eq!(system.meminfo_bytes("MemAvailable"), None);
        assert_eq!(system.meminfo_bytes("MemTotal"), None);
        assert_eq!(system.limit("Max open files"), None);
        assert_eq!(
            system.cores("/sys/devices/system/cpu/isolated"),
            Some(vec![])
        );
    }

    #[test]
    fn the_chosen_mode_stands_in_brackets() {
        assert_eq!(
            chosen_of_brackets("always [madvise] never").as_deref(),
            Some("madvise")
        );
        assert_eq!(chosen_of_brackets("always"), None);
    }
}
