//! The PCIe slot of a device: the speed of its link, the size of its requests, and the IOMMU.

use serde::Serialize;

use super::super::finding::{Findings, Severity};
use super::super::system::{System, thousandths};

/// The driver of the NICs that are fastest with read requests of 4096 bytes.
const MLX5: &str = "mlx5_core";

/// The slot in the JSON report. `None` if the system does not give the value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Pcie {
    /// The address, for example `0000:3b:00.0`.
    pub address: Option<String>,
    /// The speed of the link, in megatransfers per second and lane.
    pub speed_mtps: Option<u64>,
    /// The largest speed of the device.
    pub speed_max_mtps: Option<u64>,
    /// The number of lanes in use.
    pub lanes: Option<u64>,
    /// The number of lanes of the device.
    pub lanes_max: Option<u64>,
    /// The largest read request of the device (MaxReadReq). Only root can read it.
    pub read_request_max_bytes: Option<u32>,
    /// The largest payload of a packet from the device (MaxPayload). Only root can read it.
    pub payload_max_bytes: Option<u32>,
    /// Whether relaxed ordering is on: its packets may overtake each other. Only root can read it.
    pub relaxed_ordering: Option<bool>,
    /// Whether it is a virtual function. Its physical function sets its link and requests.
    pub virtual_function: bool,
    /// The mode of the IOMMU: `identity` translates nothing, `DMA` and `DMA-FQ` translate the addresses.
    pub iommu: Option<String>,
}

/// The Device Control register of the PCI Express capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DeviceControl(u16);

impl DeviceControl {
    /// Finds the register in the configuration space (PCI Local Bus 3.0, 6.7; PCI Express Base, 7.5.3). `None` if
    /// `config` is too short: the kernel gives users other than root only the first bytes.
    fn find(config: &[u8]) -> Option<Self> {
        const STATUS: usize = 0x06;
        const HAS_CAPABILITIES: u16 = 1 << 4;
        const FIRST: usize = 0x34;
        const PCI_EXPRESS: u8 = 0x10;
        const CONTROL: usize = 0x08;
        /// A longer chain is a loop: each capability takes at least 4 of the 192 bytes after the header.
        const CHAIN_MAX: usize = 48;
        if word(config, STATUS)? & HAS_CAPABILITIES == 0 {
            return None;
        }
        let mut at = usize::from(*config.get(FIRST)?) & !3;
        for _ in 0..CHAIN_MAX {
            if at == 0 {
                return None;
            }
            if *config.get(at)? == PCI_EXPRESS {
                return word(config, at + CONTROL).map(Self);
            }
            at = usize::from(*config.get(at + 1)?) & !3;
        }
        None
    }

    fn read_request_max_bytes(self) -> Option<u32> {
        request_bytes(self.0 >> 12 & 7)
    }

    fn payload_max_bytes(self) -> Option<u32> {
        request_bytes(self.0 >> 5 & 7)
    }

    fn relaxed_ordering(self) -> bool {
        self.0 >> 4 & 1 == 1
    }
}

/// A little-endian word of the configuration space.
fn word(config: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes([*config.get(at)?, *config.get(at + 1)?]))
}

/// The size for a code: 0 is 128 bytes, and each next code doubles it. 6 and 7 are reserved.
fn request_bytes(code: u16) -> Option<u32> {
    (code <= 5).then(|| 128 << code)
}

impl Pcie {
    /// The capacity of the link in each direction without the overhead of its coding, in megabits per second.
    #[must_use]
    pub(crate) fn capacity_mbps(&self) -> Option<u64> {
        capacity_mbps(self.speed_mtps?, self.lanes?)
    }
}

fn capacity_mbps(speed_mtps: u64, lanes: u64) -> Option<u64> {
    let (data, all) = match speed_mtps {
        ..=5000 => (8, 10),
        5001..=32_000 => (128, 130),
        // From 64 GT/s on, a flit of 256 bytes has 14 bytes of overhead.
        _ => (242, 256),
    };
    speed_mtps
        .checked_mul(lanes)?
        .checked_mul(data)?
        .checked_div(all)
}

/// Reads the slot of the device with the folder `device`. `None` for a device without a slot.
pub(crate) fn read(system: &System, device: &str) -> Option<Pcie> {
    let folder = format!("{device}/device");
    let config = system.bytes(&format!("{folder}/config"))?;
    // For example `16.0 GT/s PCIe`. A virtual function has `Unknown`, and no lanes.
    let speed = |file: &str| {
        let text = system.text(&format!("{folder}/{file}"))?;
        thousandths(text.split_once(" GT/s")?.0)
    };
    let lanes = |file: &str| {
        let lanes = system.number(&format!("{folder}/{file}"));
        lanes.filter(|lanes| (1..=32).contains(lanes))
    };
    let (speed_mtps, lanes_used) = (speed("current_link_speed"), lanes("current_link_width"));
    // In a virtual machine, a virtual function has no link to its physical function.
    let virtual_function =
        system.exists(&format!("{folder}/physfn")) || (speed_mtps, lanes_used) == (None, None);
    // The register of a virtual function is reserved. Its zeros would read as 128 bytes.
    let control = DeviceControl::find(&config).filter(|_| !virtual_function);
    Some(Pcie {
        address: system.link_name(&folder),
        speed_mtps,
        speed_max_mtps: speed("max_link_speed"),
        lanes: lanes_used,
        virtual_function,
        lanes_max: lanes("max_link_width"),
        read_request_max_bytes: control.and_then(DeviceControl::read_request_max_bytes),
        payload_max_bytes: control.and_then(DeviceControl::payload_max_bytes),
        relaxed_ordering: control.map(DeviceControl::relaxed_ordering),
        iommu: system.text(&format!("{folder}/iommu_group/type")),
    })
}

impl Pcie {
    /// The address without the number of the function.
    pub(crate) fn slot(&self) -> Option<&str> {
        let (slot, _) = self.address.as_deref()?.rsplit_once('.')?;
        Some(slot)
    }
}

/// A device, with those that share its slot.
pub(crate) struct Card<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its driver.
    pub driver: Option<&'a str>,
    /// The names of all devices in the slot.
    pub sharing: Vec<&'a str>,
    /// The rates of their active ports together, in megabits a second.
    pub rate_mbps: u64,
}

pub(crate) fn judge(card: &Card<'_>, pcie: &Pcie, findings: &mut Findings<'_>) {
    judge_link(card, pcie, findings);
    judge_requests(card, pcie, findings);
    judge_iommu(card.name, pcie, findings);
}

/// A link in words: `16 GT/s on 8 lanes`.
fn link_text(speed_mtps: u64, lanes: u64) -> String {
    let plural = if lanes == 1 { "" } else { "s" };
    format!("{} GT/s on {lanes} lane{plural}", decimal(speed_mtps))
}

fn judge_link(card: &Card<'_>, pcie: &Pcie, findings: &mut Findings<'_>) {
    let (name, rate) = (card.name, card.rate_mbps);
    let (Some(speed), Some(lanes), Some(capacity)) =
        (pcie.speed_mtps, pcie.lanes, pcie.capacity_mbps())
    else {
        return findings.ok(format!(
            "{name}: speed and lanes of its PCIe link are unknown, as for a virtual function; the host knows them"
        ));
    };
    let ports = match card.sharing.as_slice() {
        [] | [_] => "its ports".to_owned(),
        names => format!("the ports of {}, which share the slot", names.join(" and ")),
    };
    let link = format!("{name}: PCIe at {}", link_text(speed, lanes));
    let best = match (pcie.speed_max_mtps, pcie.lanes_max) {
        (Some(speed), Some(lanes)) => link_text(speed, lanes),
        _ => "its best".to_owned(),
    };
    let address = pcie.address.as_deref().unwrap_or("ADDRESS");
    let fix = format!(
        "lspci -vv -s {address} | grep -e LnkCap -e LnkSta   # and put the card into a slot that does {best}"
    );
    let slower = pcie.speed_max_mtps.is_some_and(|best| speed < best)
        || pcie.lanes_max.is_some_and(|best| lanes < best);
    if capacity < rate {
        findings.note(
            Severity::Warning,
            format!("{link}, less than {ports}"),
            format!(
                "at most {} Gb/s of the {} Gb/s of {ports}",
                decimal(capacity),
                decimal(rate)
            ),
            fix,
        );
    } else if slower {
        findings.note(
            Severity::Hint,
            format!("{link}, and the device can do {best}"),
            format!(
                "each transfer takes longer in the slot; its {} Gb/s are enough for the ports",
                decimal(capacity)
            ),
            fix,
        );
    } else {
        findings.ok(format!("{link}, {} Gb/s each way", decimal(capacity)));
    }
}

fn judge_requests(card: &Card<'_>, pcie: &Pcie, findings: &mut Findings<'_>) {
    let name = card.name;
    let address = pcie.address.as_deref().unwrap_or("ADDRESS");
    if pcie.virtual_function {
        return findings.ok(format!(
            "{name}: MaxReadReq, MaxPayload and relaxed ordering of a virtual function are set by its physical \
             one; its host knows"
        ));
    }
    let (Some(read), Some(payload), Some(relaxed)) = (
        pcie.read_request_max_bytes,
        pcie.payload_max_bytes,
        pcie.relaxed_ordering,
    ) else {
        return findings.ok(format!(
            "{name}: MaxReadReq, MaxPayload and relaxed ordering can be read by root only \
             (`lspci -vv -s {address}`)"
        ));
    };
    let least = match card.driver {
        Some(MLX5) => 4096,
        _ => 512,
    };
    if read < least {
        findings.note(
            Severity::Hint,
            format!("{name}: MaxReadReq is {read} bytes, and {least} suit it"),
            "the device fetches what it sends in more requests, which large transfers at full rate feel",
            // The code is the number of doublings of 128 bytes; see `request_bytes`.
            format!(
                "setpci -s {address} CAP_EXP+8.w={:x}000:7000   # until the next boot",
                (least / 128).ilog2()
            ),
        );
    } else {
        findings.ok(format!("{name}: MaxReadReq is {read} bytes"));
    }
    // rpcrdma registers memory without relaxed ordering, so neither setting costs anything.
    findings.ok(format!(
        "{name}: MaxPayload is {payload} bytes, relaxed ordering is {}",
        if relaxed { "on" } else { "off" }
    ));
}

fn judge_iommu(name: &str, pcie: &Pcie, findings: &mut Findings<'_>) {
    match pcie.iommu.as_deref() {
        Some(mode) if mode.starts_with("DMA") => findings.note(
            Severity::Hint,
            format!("{name}: the IOMMU translates its addresses ({mode})"),
            "each access to memory needs the translation, and many buffers miss its cache",
            "grubby --update-kernel=ALL --args=iommu=pt   # on arm64 iommu.passthrough=1; or the same on the kernel's command line by other means; then reboot",
        ),
        Some(mode) => findings.ok(format!("{name}: the IOMMU does not translate ({mode})")),
        None => {}
    }
}

/// Writes thousandths with one decimal, or without decimals if it is zero: 2500 is `2.5`.
fn decimal(thousandths: u64) -> String {
    match thousandths % 1000 / 100 {
        0 => (thousandths / 1000).to_string(),
        tenths => format!("{}.{tenths}", thousandths / 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration space with these capabilities: place, kind, next; and device control.
    fn config(chain: &[(u8, u8, u8)], control: u16) -> Vec<u8> {
        let mut config = vec![0; 256];
        config[0x06] = 0x10;
        config[0x34] = chain.first().map_or(0, |(at, _, _)| *at);
        for &(at, kind, next) in chain {
            let at = usize::from(at);
            config[at] = kind;
            config[at + 1] = next;
            if kind == 0x10 {
                config[at + 8..at + 10].copy_from_slice(&control.to_le_bytes());
            }
        }
        config
    }

    #[test]
    fn device_control_is_found_behind_other_capabilities() {
        let found = DeviceControl::find(&config(&[(0x40, 1, 0x60), (0x60, 0x10, 0)], 0x2930));
        let found = found.unwrap();
        assert_eq!(found.read_request_max_bytes(), Some(512));
        assert_eq!(found.payload_max_bytes(), Some(256));
        assert!(found.relaxed_ordering());
        assert_eq!(DeviceControl(0x5000).read_request_max_bytes(), Some(4096));
        assert_eq!(DeviceControl(0x7000).read_request_max_bytes(), None);
        assert!(!DeviceControl(0x5000).relaxed_ordering());
    }

    #[test]
    fn invalid_configuration_space_has_no_device_control() {
        let whole = config(&[(0x40, 1, 0x60), (0x60, 0x10, 0)], 0x2930);
        for length in [0, 7, 0x34, 64, 0x61, 0x69] {
            assert_eq!(DeviceControl::find(&whole[..length]), None, "{length}");
        }
        let tail = config(&[(0x40, 1, 0x50), (0x50, 1, 0x40)], 0);
        assert_eq!(DeviceControl::find(&tail), None, "a chain without end");
        assert_eq!(DeviceControl::find(&config(&[(0x40, 1, 0)], 0)), None);
        assert_eq!(DeviceControl::find(&[0xff; 256]), None);
        let mut none = whole;
        none[0x06] = 0;
        assert_eq!(DeviceControl::find(&none), None, "it says that it has none");
    }

    #[test]
    fn link_capacity_accounts_for_its_line_coding() {
        for (speed, lanes, mbps) in [
            (2500, 1, 2000),
            (5000, 8, 32_000),
            (8000, 16, 126_030),
            (16_000, 16, 252_061),
            (64_000, 16, 968_000),
        ] {
            assert_eq!(capacity_mbps(speed, lanes), Some(mbps));
        }
        assert_eq!(capacity_mbps(u64::MAX, 2), None);
        assert_eq!(
            (decimal(2500), decimal(16_000)),
            ("2.5".into(), "16".into())
        );
    }
}
