//! What must stay with the kernel, so that the machine stays within reach.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::{InterfaceError, sessions};
use crate::netlink::NetlinkError;
use crate::route::{Link, Prefix, Route};

/// Whose packets are never taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NeverTake {
    /// The default gateways' own addresses.
    pub gateways: Vec<IpAddr>,
    /// The operator's ssh connection.
    pub ssh: Option<SshConnection>,
    /// Other ssh sessions on this machine.
    pub sessions: Vec<SshConnection>,
    /// What could not be understood.
    pub warnings: Vec<String>,
}

/// An ssh connection to this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct SshConnection {
    /// The end of whoever is logged in.
    pub client: SocketAddr,
    /// This machine's end.
    pub server: SocketAddr,
}

/// What is never taken in a network namespace, for the operator's session: that of `SSH_CONNECTION` in our own environment
/// or, since sudo(8) takes it out of that, in that of the process that started us, or its. The sessions of others are those whose
/// processes we may look at.
///
/// # Errors
/// When the kernel does not list its routes.
pub fn never_take(route: &mut Route) -> Result<NeverTake, NetlinkError> {
    let mut never = NeverTake { gateways: gateways(route)?, ..NeverTake::default() };
    match session(std::env::var(SSH_CONNECTION).ok(), std::process::id()) {
        Ok(ssh) => never.ssh = ssh,
        Err(value) => never.warnings.push(format!(
            "SSH_CONNECTION is '{value}', not 'CLIENT PORT SERVER PORT': your ssh connection is not protected"
        )),
    }
    if let Some(over) = never.ssh.filter(|ssh| sessions::is_over(*ssh)) {
        // mosh begins by ssh, and goes on with packets of its own.
        never.warnings.push(format!(
            "your ssh connection, from {}, is over: if you are here by mosh, what you send may be taken or dropped; with --rules: \
             never_drop = ['udp portrange 60000-61000']",
            over.client
        ));
    }
    let (sessions, more) = sessions::others(never.ssh);
    never.sessions = sessions;
    if more > 0 {
        let spared = never.sessions.len();
        never.warnings.push(format!(
            "there are {more} more ssh sessions than the {spared} beside yours that are protected; with --rules: never_drop = ['tcp port 22']"
        ));
    }
    Ok(never)
}

/// The default gateways' own addresses in a network namespace, each once and in order.
///
/// # Errors
/// When the kernel does not list its routes.
pub fn gateways(route: &mut Route) -> Result<Vec<IpAddr>, NetlinkError> {
    let addresses: BTreeSet<IpAddr> =
        route.default_gateways()?.into_iter().filter_map(|gateway| gateway.address).collect();
    Ok(addresses.into_iter().collect())
}

/// Where sshd(8) says whose connection a session is.
const SSH_CONNECTION: &str = "SSH_CONNECTION";

/// Processes between us and the session at most: the chain ends by itself unless `/proc` changes meanwhile.
const ANCESTORS: usize = 64;

/// The operator's connection: the one that a process has in its own environment or, where that tells of none, its nearest ancestor that
/// has one.
///
/// # Errors
/// What is said, where nothing that is said is a connection.
fn session(own: Option<String>, process: u32) -> Result<Option<SshConnection>, String> {
    let mut wrong = None;
    for value in own.into_iter().chain(inherited(process)) {
        match ssh(&value) {
            Some(connection) => return Ok(Some(connection)),
            None => wrong = wrong.or(Some(value)),
        }
    }
    // Nothing is said by who empties it.
    wrong.filter(|value| !value.is_empty()).map_or(Ok(None), Err)
}

/// `SSH_CONNECTION` of a process's ancestors, the nearest first, as far as we may read environments.
fn inherited(process: u32) -> impl Iterator<Item = String> {
    let ancestors = std::iter::successors(Some(process), |process| {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
        (parent != 0).then_some(parent)
    });
    ancestors.take(ANCESTORS).skip(1).filter_map(session_of)
}

/// A process's `SSH_CONNECTION`.
pub(super) fn session_of(process: u32) -> Option<String> {
    let environment = std::fs::read(format!("/proc/{process}/environ")).ok()?;
    let value = environment
        .split(|byte| *byte == 0)
        .find_map(|variable| variable.strip_prefix(SSH_CONNECTION.as_bytes())?.strip_prefix(b"="))?;
    String::from_utf8(value.to_vec()).ok()
}

/// A value of `SSH_CONNECTION`: sshd(8) writes the client's address and port and the server's, with blanks between.
pub fn ssh(value: &str) -> Option<SshConnection> {
    let mut words = value.split_ascii_whitespace();
    let mut end = || {
        // A link-local address has its interface behind it.
        let address = words.next()?.split('%').next()?.parse::<IpAddr>().ok()?;
        Some(SocketAddr::new(address.to_canonical(), words.next()?.parse().ok()?))
    };
    let connection = SshConnection { client: end()?, server: end()? };
    words.next().is_none().then_some(connection)
}

/// What the kernel uses an interface for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KernelUse {
    /// Its addresses, but not those that every interface gets by itself (link-local).
    pub addresses: Vec<Prefix>,
    /// A default route goes by it.
    pub default_route: bool,
    /// It is a port of this bridge or bond.
    pub controller: Option<String>,
    /// Interfaces on top of it that are up: VLANs, macvlans, tunnels. What it takes they lose.
    pub above: Vec<String>,
}

impl KernelUse {
    /// Why all of the interface should not be taken: `it has the address 10.0.0.1/24`. `None` when nothing is against
    /// it.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        let address = self.addresses.first().map(|address| format!("it has the address {address}"));
        let route = self.default_route.then(|| "the default route goes by it".to_owned());
        let port = self.controller.as_ref().map(|name| format!("it is a port of {name}"));
        let above = (!self.above.is_empty()).then(|| format!("{} on top of it is up", self.above.join(", ")));
        let reasons: Vec<String> = [address, route, port, above].into_iter().flatten().collect();
        (!reasons.is_empty()).then(|| reasons.join(" and "))
    }
}

/// What the kernel uses an interface of the calling thread's network namespace for.
///
/// An interface on top of it that was moved into another namespace is not seen from here.
///
/// # Errors
/// [`InterfaceError::None`], or when the kernel does not answer.
pub fn kernel_use(name: &str) -> Result<KernelUse, InterfaceError> {
    let mut route = Route::open()?;
    let links = route.links()?;
    let link =
        links.iter().find(|link| link.name == name).ok_or_else(|| InterfaceError::none(name, &links))?;
    let addresses = route.addresses()?;
    let own = addresses.iter().filter(|address| address.index == link.index && !address.link_local);
    Ok(KernelUse {
        addresses: own.map(|address| address.prefix).collect(),
        default_route: route.default_gateways()?.iter().any(|gateway| gateway.index == link.index),
        controller: link
            .controller
            .and_then(|index| links.iter().find(|other| other.index == index))
            .map(|controller| controller.name.clone()),
        above: above(&links, link.index),
    })
}

/// The interfaces right on top of one that are up. Through those that are down nothing comes to others above.
fn above(links: &[Link], index: u32) -> Vec<String> {
    let is_above = |link: &&Link| {
        // A veth names its other end in the same place.
        link.up
            && link.index != index
            && link.peer == Some(index)
            && link.peer_namespace.is_none()
            && link.kind.as_deref() != Some("veth")
    };
    links.iter().filter(is_above).map(|link| link.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_found_behind_a_process_that_dropped_it() {
        // A shell that has the variable starts one without it, as sudo does, which waits for us to look.
        let script = "env -u SSH_CONNECTION sh -c 'echo $$; read line; :'; :";
        let mut shell = std::process::Command::new("sh")
            .args(["-c", script])
            .env(SSH_CONNECTION, "192.0.2.1 50000 192.0.2.2 22")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = shell.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
        let inner = line.trim().parse().unwrap();
        let found = ["", "-", "192.0.2.9 1 192.0.2.2 22"].map(|own| session(Some(own.into()), inner));
        let inherits = session(None, inner);
        drop(shell.stdin.take());
        shell.wait().unwrap();
        let told = ssh("192.0.2.1 50000 192.0.2.2 22");
        let own = ssh("192.0.2.9 1 192.0.2.2 22");
        assert_eq!((inherits, found), (Ok(told), [Ok(told), Ok(told), Ok(own)]));
        assert_eq!(session(None, 1), Ok(None));
        assert_eq!(
            (session(Some(String::new()), 1), session(Some("-".into()), 1)),
            (Ok(None), Err("-".into()))
        );
    }

    #[test]
    fn an_ssh_connection_is_read() {
        for (text, client, server) in [
            ("192.0.2.7 50022 192.0.2.1 22", "192.0.2.7:50022", "192.0.2.1:22"),
            ("2001:db8::7 50022 2001:db8::1 22", "[2001:db8::7]:50022", "[2001:db8::1]:22"),
            ("fe80::7%eth0 50022 fe80::1%eth0 22", "[fe80::7]:50022", "[fe80::1]:22"),
            ("::ffff:192.0.2.7 50022 ::ffff:192.0.2.1 22", "192.0.2.7:50022", "192.0.2.1:22"),
        ] {
            let connection = ssh(text).unwrap();
            assert_eq!(
                (connection.client.to_string(), connection.server.to_string()),
                (client.into(), server.into())
            );
        }
        for text in [
            "",
            "192.0.2.7 50022",
            "192.0.2.7 50022 192.0.2.1 22 9",
            "host 1 192.0.2.1 22",
            "192.0.2.7 x 192.0.2.1 22",
            "192.0.2.7 70000 192.0.2.1 22",
        ] {
            assert_eq!(ssh(text), None, "{text}");
        }
    }

    #[test]
    fn every_use_is_a_reason() {
        assert_eq!(KernelUse::default().reason(), None);
        let all = KernelUse {
            addresses: vec!["10.0.0.1/24".parse().unwrap()],
            default_route: true,
            controller: Some("br0".into()),
            above: vec!["eth0.7".into(), "mac0".into()],
        };
        assert_eq!(
            all.reason().unwrap(),
            "it has the address 10.0.0.1/24 and the default route goes by it and it is a port of br0 and \
             eth0.7, mac0 on top of it is up"
        );
    }

    #[test]
    fn what_is_on_top_and_up_is_found() {
        let link = |index, name: &str, kind: &str, peer| Link {
            index,
            name: name.into(),
            kind: Some(kind.into()),
            up: true,
            peer: Some(peer),
            ..Link::default()
        };
        let links = [
            link(2, "eth0", "hardware", 2),
            link(3, "eth0.7", "vlan", 2),
            Link { up: false, ..link(4, "eth0.8", "vlan", 2) },
            link(5, "far", "veth", 2),
            Link { peer_namespace: Some(1), ..link(6, "of-another-namespace", "macvlan", 2) },
            link(7, "eth1.7", "vlan", 9),
            link(8, "ipvl0", "ipvlan", 2),
        ];
        assert_eq!(above(&links, 2), ["eth0.7", "ipvl0"]);
    }
}
