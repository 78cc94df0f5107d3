//! The choice of a profile for a device of this machine: by its driver, its PCI identifiers, and for a software device
//! its name. All of it is read from `/sys`, without privilege or library.

use std::path::Path;

use crate::families;
use crate::text::Match;

/// The kernel's folder of RDMA devices, below the root.
const CLASS: &str = "sys/class/infiniband";

/// An RDMA device, as described by the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name, as `rdma link` has it.
    pub name: String,
    /// The driver of the PCI function that it sits on; a software device has none, or that of a NIC
    /// beneath.
    pub driver: Option<String>,
    /// The PCI identifiers of that function, `VENDOR:PART` in hexadecimal digits.
    pub part: Option<String>,
}

/// The profile of a device, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Detected {
    /// Its profile, `FAMILY` or `FAMILY/DEVICE`.
    Profile(String),
    /// It cannot be used.
    Refused {
        /// The family whose file says so.
        family: &'static str,
        /// What it lacks.
        reason: String,
    },
    /// No profile is for it: the built-in defaults are used.
    Unknown,
}

impl Device {
    /// All devices of the machine whose `/sys` lies below `root` (`/` for this one), by name.
    #[must_use]
    pub fn all(root: &Path) -> Vec<Self> {
        let Ok(entries) = std::fs::read_dir(root.join(CLASS)) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort_unstable();
        names.iter().map(|name| Self::named(root, name)).collect()
    }

    /// The device of that name. A missing device has neither driver nor identifiers.
    #[must_use]
    pub fn named(root: &Path, name: &str) -> Self {
        let function = root.join(CLASS).join(name).join("device");
        let driver = std::fs::read_link(function.join("driver")).ok();
        let driver = driver.as_deref().and_then(Path::file_name);
        // As in `0x15b3`.
        let identifier = |file: &str| {
            let text = std::fs::read_to_string(function.join(file)).ok()?;
            let digits = text.trim().strip_prefix("0x")?;
            u16::from_str_radix(digits, 16).ok()
        };
        let part = identifier("vendor")
            .zip(identifier("device"))
            .map(|(vendor, part)| format!("{vendor:04x}:{part:04x}"));
        Self {
            name: name.to_owned(),
            driver: driver.map(|driver| driver.to_string_lossy().into_owned()),
            part,
        }
    }

    /// The profile for it.
    #[must_use]
    pub fn detect(&self) -> Detected {
        let fitting = families::texts()
            .filter_map(|(family, text)| Some((self.closeness(&text.matches)?, family, text)));
        let Some((_, family, text)) = fitting.max_by_key(|&(closeness, _, _)| closeness) else {
            return Detected::Unknown;
        };
        if let Some(reason) = text.refused {
            return Detected::Refused { family, reason };
        }
        let device = text
            .device
            .iter()
            .find(|(_, device)| self.is_one_of(&device.parts));
        Detected::Profile(match device {
            Some((device, _)) => format!("{family}/{device}"),
            None => family.to_owned(),
        })
    }

    /// How closely a family matches this device; `None` if it does not.
    fn closeness(&self, wanted: &Match) -> Option<u8> {
        // The user chooses the name of a software device, and it may be on any NIC: so only its name identifies it.
        if wanted
            .names
            .iter()
            .any(|name| self.name.starts_with(name.as_str()))
        {
            return Some(3);
        }
        let driver = self.driver.as_ref()?;
        if !wanted.drivers.contains(driver) {
            return None;
        }
        match wanted.parts.is_empty() {
            true => Some(1),
            false => self.is_one_of(&wanted.parts).then_some(2),
        }
    }

    fn is_one_of(&self, parts: &[String]) -> bool {
        self.part.as_ref().is_some_and(|part| parts.contains(part))
    }
}
