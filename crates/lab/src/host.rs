//! A host: a network namespace with the settings a test wants to rely on.

use std::ffi::OsStr;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bywash_sys::ethtool::{Ethtool, EthtoolError};
use bywash_sys::namespace::{Namespace, NamespaceError};
use bywash_sys::netlink::NetlinkError;
use bywash_sys::route::{Gateway, Link, NewRoute, Prefix, Route};
use bywash_sys::sysctl::{self, SysctlError};
use bywash_sys::tun::TunError;

use crate::ours::MARK;

/// Why a part of the lab could not be made or changed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A network namespace.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// An interface, address, route or neighbour.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A feature of an interface.
    #[error(transparent)]
    Ethtool(#[from] EthtoolError),
    /// A TAP interface.
    #[error(transparent)]
    Tap(#[from] TunError),
    /// A setting of the kernel.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// An interface that should be there is not.
    #[error("the host has no interface '{0}'")]
    NoLink(String),
    /// An interface has no link in time.
    #[error("{0} is set up but has no link after {1:?}")]
    NotUp(String, Duration),
    /// An address does not work in time.
    #[error("the host has the address {0} but does not listen to it after {1:?}")]
    NotHeard(Prefix, Duration),
}

/// What a host is like.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// IPv6 is on. Off by default: its neighbour and multicast messages would be among a test's packets.
    pub ipv6: bool,
    /// Which congestion control TCP uses on cables. Pinned, since kernels differ in their default and its numbers
    /// with it. Connections to the host itself keep the kernel's default.
    pub congestion_control: &'static str,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self { ipv6: false, congestion_control: "cubic" }
    }
}

/// A network namespace, and what is done in it.
#[derive(Debug)]
pub struct Host {
    namespace: Namespace,
    route: Mutex<Route>,
    ethtool: Ethtool,
    congestion_control: Option<&'static str>,
}

impl Host {
    /// A new host: its loopback interface is up, IPv6 is off.
    ///
    /// # Errors
    /// Without root, or when the kernel refuses.
    pub fn new() -> Result<Self, LabError> {
        Self::with(&HostOptions::default())
    }

    /// A new host, not quite as [`Host::new`] makes it.
    ///
    /// # Errors
    /// Without root, or when the kernel refuses.
    pub fn with(options: &HostOptions) -> Result<Self, LabError> {
        let host = Self::of(Namespace::new()?, Some(options.congestion_control))?;
        // A kernel without IPv6 has it off already.
        if !options.ipv6 && sysctl::path("net.ipv6").exists() {
            host.sysctl("net.ipv6.conf.all.disable_ipv6", "1")?;
            host.sysctl("net.ipv6.conf.default.disable_ipv6", "1")?;
        }
        let loopback = host.link("lo")?.index;
        host.route().set_up(loopback, true)?;
        Ok(host)
    }

    /// The caller's own network namespace, as it is, for the other end of a [`Pair`](crate::Pair). Nothing in it is
    /// changed.
    ///
    /// # Errors
    /// When this process has too many files open.
    pub fn here() -> Result<Self, LabError> {
        Self::of(Namespace::current()?, None)
    }

    fn of(namespace: Namespace, congestion_control: Option<&'static str>) -> Result<Self, LabError> {
        let (route, ethtool) = namespace.enter(|| (Route::open(), Ethtool::open()))?;
        Ok(Self { namespace, route: Mutex::new(route?), ethtool: ethtool?, congestion_control })
    }

    /// Its network namespace.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Runs `work` in it, on a thread of its own. Sockets opened there stay in it. Panics go through.
    ///
    /// # Errors
    /// When the namespace can't be entered.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        Ok(self.namespace.enter(work)?)
    }

    /// A program that will run in it. It and what it starts are told from others' by the variable `BYWASH_LAB` in
    /// their environment, so that one left behind is noticed.
    ///
    /// # Errors
    /// When this process has too many files open.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Result<Command, LabError> {
        let mut command = self.namespace.command(program)?;
        command.env(MARK, std::process::id().to_string());
        Ok(command)
    }

    /// Its interfaces, addresses, routes and neighbours.
    pub fn route(&self) -> MutexGuard<'_, Route> {
        // A panic between two requests leaves a socket that is as good as before.
        self.route.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its interfaces' drivers.
    #[must_use]
    pub fn ethtool(&self) -> &Ethtool {
        &self.ethtool
    }

    /// Sets one of its kernel settings, as `net.ipv4.ip_forward`.
    ///
    /// # Errors
    /// When there is no such setting, or the kernel refuses the value.
    pub fn sysctl(&self, name: &str, value: &str) -> Result<(), LabError> {
        Ok(self.enter(|| sysctl::write(name, value))??)
    }

    /// An interface of it.
    ///
    /// # Errors
    /// When it has none of that name.
    pub fn link(&self, name: &str) -> Result<Link, LabError> {
        let found = self.route().link(name)?;
        found.ok_or_else(|| LabError::NoLink(name.into()))
    }

    /// Gives an interface that is up an address and a route to the address's network.
    ///
    /// # Errors
    /// When the kernel refuses: IPv6 is off unless the host was made with it.
    pub fn add_address(&self, index: u32, prefix: Prefix) -> Result<(), LabError> {
        self.route().add_address(index, prefix)?;
        // The kernel makes an IPv6 address work in the background.
        if !within(IN_TIME, || Ok(self.route().is_local(prefix.address)?))? {
            return Err(LabError::NotHeard(prefix, IN_TIME));
        }
        self.add_route(prefix, Gateway { index, address: None })
    }

    /// Adds a route, by a gateway or to what is on the link; to `0.0.0.0/0`, say.
    ///
    /// # Errors
    /// When the kernel refuses: the gateway is not on the link, or the route is there already.
    pub fn add_route(&self, to: Prefix, way: Gateway) -> Result<(), LabError> {
        let congestion_control = self.congestion_control;
        Ok(self.route().add_route(&NewRoute { to, way, congestion_control })?)
    }

    /// Waits until an interface has a link and its queues are open for sending.
    ///
    /// # Errors
    /// When that takes longer than five seconds.
    pub fn wait_until_running(&self, name: &str) -> Result<(), LabError> {
        if within(IN_TIME, || Ok(self.link(name)?.running))? {
            return Ok(());
        }
        Err(LabError::NotUp(name.into(), IN_TIME))
    }

    /// Switches on or off everything that makes packets differ from what is on a wire: super-segments in either
    /// direction and checksums that are not filled in.
    ///
    /// # Errors
    /// When there is no such interface, or it is not a veth.
    pub fn set_offloads(&self, name: &str, on: bool) -> Result<(), LabError> {
        Ok(self.ethtool.set_features(name, VETH_OFFLOADS, on)?)
    }
}

/// What the kernel does in the background, as opening an interface's queues after it has seen the carrier, it does
/// within a second.
const IN_TIME: Duration = Duration::from_secs(5);

/// Whether something becomes true in time.
fn within(patience: Duration, mut is: impl FnMut() -> Result<bool, LabError>) -> Result<bool, LabError> {
    let start = Instant::now();
    loop {
        if is()? {
            return Ok(true);
        }
        if start.elapsed() > patience {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// In this order: segmentation needs scatter-gather and checksums.
const VETH_OFFLOADS: &[&str] = &[
    "tx-checksum-ip-generic",
    "rx-checksum",
    "tx-scatter-gather",
    "tx-scatter-gather-fraglist",
    "tx-generic-segmentation",
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-udp-segmentation",
    "rx-gro",
];
