//! Reports the server's state to the service manager: datagrams of sd_notify(3) to the socket in `$NOTIFY_SOCKET`.
//! Without that variable it does nothing.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// The service manager's socket, and the watchdog period.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    to: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Watchdog>,
}

#[derive(Debug)]
struct Watchdog {
    period: Duration,
    due: Instant,
}

impl Notifier {
    /// Reads the environment.
    ///
    /// # Errors
    /// If the variable is not a valid socket address, or no socket can be created.
    pub(crate) fn from_environment() -> io::Result<Self> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let Some(socket) = variable("NOTIFY_SOCKET") else {
            return Ok(Self::default());
        };
        let is_ours =
            variable("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        let watchdog_us = variable("WATCHDOG_USEC").filter(|_| is_ours);
        let watchdog_us = watchdog_us.and_then(|time| time.parse().ok());
        Self::new(&socket, watchdog_us.map(Duration::from_micros))
    }

    /// Notifies `socket`: a path, or `@` and a name in the abstract namespace. The service manager treats a server
    /// that is silent for `watchdog` as dead.
    ///
    /// # Errors
    /// As [`Notifier::from_environment`].
    pub(crate) fn new(socket: &str, watchdog: Option<Duration>) -> io::Result<Self> {
        let address = match socket.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(socket)?,
        };
        let watchdog = watchdog
            .filter(|time| !time.is_zero())
            .map(|time| Watchdog {
                // Three times per watchdog time, so that one late report does not kill the server.
                period: time / 3,
                due: Instant::now(),
            });
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            to: Some((socket, address)),
            watchdog,
        })
    }

    /// Whether there is a service manager.
    #[must_use]
    pub(crate) const fn is_heard(&self) -> bool {
        self.to.is_some()
    }

    /// Reports that the server accepts clients.
    pub(crate) fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// Reports that limits are read again; [`Notifier::ready`] must follow.
    pub(crate) fn reloading(&self) {
        self.tell("RELOADING=1");
    }

    /// Reports that the server stops: it accepts no clients, and running calls finish within `at_most`.
    pub(crate) fn stopping(&self, status: &str, at_most: Duration) {
        let time_us = at_most.as_micros();
        let status = one_line(status);
        self.tell(&format!(
            "STOPPING=1\nEXTEND_TIMEOUT_USEC={time_us}\nSTATUS={status}"
        ));
    }

    /// Reports to the watchdog that the server is alive, if there is a watchdog and the report is due.
    pub(crate) fn alive(&mut self, now: Instant) {
        let Some(watchdog) = &mut self.watchdog else {
            return;
        };
        if now >= watchdog.due {
            watchdog.due = now + watchdog.period;
            self.tell("WATCHDOG=1");
        }
    }

    fn tell(&self, what: &str) {
        if let Some((socket, address)) = &self.to {
            // Nothing helps if the manager does not listen; it has its own time-outs.
            let _ = socket.send_to_addr(what.as_bytes(), address);
        }
    }
}

fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager(name: &str) -> (UnixDatagram, String) {
        let name = format!("rpcrdma-notify-{name}-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        socket
            .set_read_timeout(Some(rpcrdma_testkit::PATIENCE))
            .unwrap();
        (socket, format!("@{name}"))
    }

    fn told(manager: &UnixDatagram) -> String {
        let mut bytes = [0; 512];
        let count = manager.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..count].to_vec()).unwrap()
    }

    #[test]
    fn the_manager_hears_how_the_server_is() {
        let (manager, name) = manager("states");
        let notifier = Notifier::new(&name, None).unwrap();
        notifier.ready("listening\non shm:x");
        assert_eq!(told(&manager), "READY=1\nSTATUS=listening on shm:x");
        notifier.reloading();
        assert_eq!(told(&manager), "RELOADING=1");
        notifier.stopping("draining", Duration::from_secs(2));
        let wanted = "STOPPING=1\nEXTEND_TIMEOUT_USEC=2000000\nSTATUS=draining";
        assert_eq!(told(&manager), wanted);
    }

    #[test]
    fn watchdog_is_notified_three_times_within_its_period() {
        let (manager, name) = manager("watchdog");
        let mut notifier = Notifier::new(&name, Some(Duration::from_secs(30))).unwrap();
        // TIME: nothing waits: all times are computed from one reading.
        let now = Instant::now();
        notifier.alive(now);
        notifier.alive(now + Duration::from_secs(9));
        notifier.alive(now + Duration::from_secs(10));
        assert_eq!(told(&manager), "WATCHDOG=1");
        assert_eq!(told(&manager), "WATCHDOG=1");
        manager.set_nonblocking(true).unwrap();
        assert!(manager.recv(&mut [0; 16]).is_err(), "not more often");
    }

    #[test]
    fn without_a_manager_nothing_is_told() {
        let mut silent = Notifier::default();
        silent.ready("ready");
        // TIME: nothing is sent at any time.
        silent.alive(Instant::now());
        assert!(silent.to.is_none());
        // Longer than a socket address can be.
        assert!(Notifier::new(&"x".repeat(200), None).is_err());
    }
}
