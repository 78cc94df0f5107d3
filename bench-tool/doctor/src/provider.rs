//! Chooses the provider for each kind of address, with the reason.

use rpcrdma_control::{Devices, Fabric};
use serde::Serialize;

use super::device::Device;
use super::finding::{Area, Finding, Findings, Severity};
use super::system::System;

/// The first kernel with F_SEAL_FUTURE_WRITE. shm seals its memory with it.
const KERNEL_LEAST: (u32, u32) = (5, 1);

/// The command that installs rdma-core.
const RDMA_CORE: &str = "apt-get install libibverbs1 librdmacm1 ibverbs-providers   # Fedora, RHEL: dnf install \
                         libibverbs librdmacm";

/// The choice for one kind of address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Choice {
    /// The kind of address.
    pub address: &'static str,
    /// The provider; null if no provider can be used.
    pub provider: Option<&'static str>,
    /// The device of a server that a run starts itself. The device for a remote address depends on its route.
    pub device: Option<String>,
    /// The reason for the choice, or why there is none.
    pub why: String,
}

/// Makes the same choice as a run.
pub(crate) fn examine(system: &System, devices: &[Device], all: &mut Vec<Finding>) -> Vec<Choice> {
    let mut findings = Findings::new(Area::Providers, all);
    let shm = choose_shm(system, &mut findings);
    // The libraries belong to this machine, but the examined files can be a copy from another machine.
    let missing = system.is_real().then(|| rdma_core(&mut findings)).flatten();
    vec![
        shm,
        choose_rdma(system, devices, missing.as_deref(), &mut findings),
    ]
}

/// Adds a finding with the functions of rdma-core. Returns the reason if rdma-core cannot be used.
fn rdma_core(findings: &mut Findings<'_>) -> Option<String> {
    let facilities = match rpcrdma_fabric::verbs::facilities() {
        Ok(facilities) => facilities,
        Err(error) => return Some(error.to_string()),
    };
    let has = |has: bool| if has { "yes" } else { "no" };
    findings.ok(format!(
        "rdma-core is installed; memory by dma-buf: {}, registrations by attributes: {}, counters of completions: {}",
        has(facilities.registers_dmabuf),
        has(facilities.registers_by_attributes),
        has(facilities.counts_completions),
    ));
    None
}

fn choose_shm(system: &System, findings: &mut Findings<'_>) -> Choice {
    let release = system.text("/proc/sys/kernel/osrelease");
    let too_old = release
        .as_deref()
        .and_then(version)
        .filter(|version| *version < KERNEL_LEAST);
    let (provider, why) = if let Some((major, minor)) = too_old {
        let why = format!(
            "kernel {major}.{minor} cannot seal shared memory against its readers; 5.1 and later can"
        );
        findings.note(
            Severity::Problem,
            format!("shm:NAME cannot be used: {why}"),
            "processes of one machine have no fabric between them",
            "run a kernel from 5.1 on",
        );
        (None, why)
    } else {
        let why = "it is always built in, and needs neither device nor privilege".to_owned();
        findings.ok(format!("shm:NAME is carried by shm: {why}"));
        (Some("shm"), why)
    };
    Choice {
        address: "shm:NAME",
        provider,
        device: None,
        why,
    }
}

/// `missing` is why rdma-core cannot be used.
fn choose_rdma(
    system: &System,
    devices: &[Device],
    missing: Option<&str>,
    findings: &mut Findings<'_>,
) -> Choice {
    let address = "rdma:HOST:PORT";
    let active = match system.is_real() {
        true => Fabric::device_named(None).ok(),
        // The files of another machine, whose devices cannot be opened.
        false => devices
            .iter()
            .find(|device| device.usable && device.is_active())
            .map(|device| Fabric::Verbs {
                devices: Devices::one(&device.name),
            }),
    };
    let active = active.as_ref().and_then(Fabric::devices);
    let active = active.map(Devices::first);
    let (why, severity, fix) = match (missing, active) {
        (Some(missing), _) => (
            missing,
            if devices.is_empty() {
                Severity::Hint
            } else {
                Severity::Problem
            },
            RDMA_CORE.to_owned(),
        ),
        (None, Some(device)) => {
            let why = format!("{device} is the first device with an active port");
            findings.ok(format!("{address} is carried by verbs: {why}"));
            return Choice {
                address,
                provider: Some("verbs"),
                device: Some(device.to_owned()),
                why,
            };
        }
        (None, None) if devices.is_empty() => (
            "there is no RDMA device",
            Severity::Hint,
            system.way_to_soft_roce(),
        ),
        (None, None) => (
            "no device can be opened that has an active port",
            Severity::Problem,
            "see what is said of the devices below".to_owned(),
        ),
    };
    findings.note(
        severity,
        format!("{address} cannot be used: {why}"),
        "nothing can be measured between machines",
        fix,
    );
    Choice {
        address,
        provider: None,
        device: None,
        why: why.to_owned(),
    }
}

/// The major and minor version of a kernel release like `6.1.0-13-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|digit: char| !digit.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::device::DevicePort;
    use super::super::system::tests::FakeMachine;
    use super::*;

    fn device(name: &str, usable: bool, state: &str) -> Device {
        Device {
            name: name.to_owned(),
            usable,
            ports: vec![DevicePort {
                number: 1,
                state: state.to_owned(),
                ..DevicePort::default()
            }],
            ..Device::default()
        }
    }

    fn of(machine: &FakeMachine, devices: &[Device]) -> (Vec<Choice>, Vec<Finding>) {
        let mut findings = Vec::new();
        let choices = examine(&machine.system(), devices, &mut findings);
        (choices, findings)
    }

    #[test]
    fn shm_carries_its_addresses_on_any_kernel_that_seals() {
        let machine = FakeMachine::good();
        let (choices, findings) = of(&machine, &[]);
        assert_eq!(
            (choices[0].provider, findings[0].severity),
            (Some("shm"), Severity::Ok)
        );
        for (release, provider) in [
            ("5.1.0-rc1", Some("shm")),
            ("5.0.21-generic", None),
            ("4.19.0", None),
            ("10.0", Some("shm")),
            ("odd", Some("shm")),
        ] {
            machine.set("proc/sys/kernel/osrelease", release);
            assert_eq!(of(&machine, &[]).0[0].provider, provider, "{release}");
        }
    }

    #[test]
    fn rdma_takes_the_first_device_that_is_usable_and_active() {
        let machine = FakeMachine::good();
        let devices = [
            device("mlx5_0", true, "DOWN"),
            device("mlx5_1", false, "ACTIVE"),
            device("mlx5_2", true, "ACTIVE"),
        ];
        let (choices, _) = of(&machine, &devices);
        let chosen = (choices[1].provider, choices[1].device.as_deref());
        assert_eq!(chosen, (Some("verbs"), Some("mlx5_2")));
        assert_eq!(of(&machine, &devices[..2]).1[1].severity, Severity::Problem);
        let (choices, findings) = of(&machine, &[]);
        assert_eq!(
            (choices[1].provider, findings[1].severity),
            (None, Severity::Hint)
        );
    }

    #[test]
    fn without_rdma_core_it_is_said_what_is_missing_and_how_it_is_installed() {
        let machine = FakeMachine::good();
        let devices = [device("mlx5_0", true, "ACTIVE")];
        for (devices, severity) in [(&devices[..], Severity::Problem), (&[], Severity::Hint)] {
            let mut all = Vec::new();
            let mut findings = Findings::new(Area::Providers, &mut all);
            let why = Some("libibverbs.so.1 could not be loaded");
            let choice = choose_rdma(&machine.system(), devices, why, &mut findings);
            assert_eq!((choice.provider, Some(choice.why.as_str())), (None, why));
            assert_eq!(all[0].severity, severity);
            let fix = all[0].fix.as_deref().unwrap();
            for package in [
                "libibverbs1",
                "librdmacm1",
                "ibverbs-providers",
                "libibverbs ",
            ] {
                assert!(fix.contains(package), "{fix}");
            }
        }
    }
}
