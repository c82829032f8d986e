//! What is to be known or fixed before packets are taken from an interface.
//!
//! Each finding is one line: what, why, what to do. The list is what has cost users of AF_XDP days: drivers refuse
//! without a reason, or nothing arrives and no counter says why.

use std::fmt;

use serde::Serialize;

use super::Interface;
use crate::bpf::OUR_PROGRAM;
use crate::xsk::MAX_CHUNKS;

/// How bad a finding is, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It will not work.
    Error,
    /// It will work badly, or not as expected.
    Warning,
    /// Good to know.
    Note,
}

/// What a finding is about: some ways to open an interface need not care.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Topic {
    /// The interface itself: Ethernet, up, link.
    Interface,
    /// The rights of this process.
    Rights,
    /// An XDP program that is there.
    Program,
    /// Running XDP programs in the driver.
    NativeXdp,
    /// What packets look like, and how many fit.
    Packets,
    /// Sockets that native XDP gives packets to.
    Sockets,
    /// The way between the wire and memory.
    Path,
}

/// One thing to be known or fixed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about.
    pub topic: Topic,
    /// What, why, and what to do, in one line.
    pub text: String,
}

impl Finding {
    fn error(topic: Topic, text: impl Into<String>) -> Self {
        Self { severity: Severity::Error, topic, text: text.into() }
    }

    fn warning(topic: Topic, text: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, topic, text: text.into() }
    }

    fn note(topic: Topic, text: impl Into<String>) -> Self {
        Self { severity: Severity::Note, topic, text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What an `xdp:` port on it would use.
pub(super) fn would_use(interface: &Interface, frame: u32) -> String {
    if !interface.ethernet {
        return "nothing: no Ethernet".into();
    }
    if too_long(interface, frame).is_some() {
        return "nothing that receives: the MTU".into();
    }
    let xdp = interface.xdp_features.unwrap_or_default();
    if no_sockets(interface).is_some() {
        return "nothing that receives: its ports".into();
    }
    let native = xdp.native && native_refused(interface, frame).is_empty();
    let way = if native { "native XDP" } else { "generic XDP" };
    let copy = if native && xdp.zero_copy { "zero-copy" } else { "copy" };
    let queues = interface.queues.rx.max(1);
    format!("{way}, {copy}, {queues} queue{}", if queues == 1 { "" } else { "s" })
}

/// Everything that can be said of an interface. `frame` is the longest packet that fits into one frame, in bytes.
pub(super) fn findings(interface: &Interface, frame: u32) -> Vec<Finding> {
    let name = &interface.name;
    if !interface.ethernet {
        let text = format!("{name} carries no Ethernet frames: choose another interface");
        return vec![Finding::error(Topic::Interface, text)];
    }
    let mut findings: Vec<Finding> = state(interface).into_iter().collect();
    findings.extend(xdp(interface));
    let refused = native_refused(interface, frame).into_iter();
    findings.extend(refused.map(|text| Finding::warning(Topic::NativeXdp, text)));
    findings.extend(no_sockets(interface).map(|text| Finding::error(Topic::Sockets, text)));
    findings.extend(packets(interface, frame));
    findings.extend(path(interface));
    findings.sort_by_key(|finding| finding.severity);
    findings
}

/// Up, link, what else is on it.
fn state(interface: &Interface) -> Option<Finding> {
    let name = &interface.name;
    if !interface.up {
        Some(Finding::error(Topic::Interface, format!("{name} is down: `ip link set {name} up`")))
    } else if !interface.carrier {
        let text = format!("{name} has no link: nothing passes until its partner is up (cable, switch port)");
        Some(Finding::warning(Topic::Interface, text))
    } else {
        None
    }
}

fn xdp(interface: &Interface) -> Vec<Finding> {
    let (name, driver) = (&interface.name, &interface.driver.name);
    let mut findings = Vec::new();
    if let Some(program) = &interface.xdp_program {
        let called = if program.name.is_empty() { String::new() } else { format!(" '{}'", program.name) };
        let cure = if program.name.starts_with(OUR_PROGRAM) {
            format!("it is Bywash's: one port at a time has {name}, all its queues or one")
        } else {
            format!("stop who attached it, or, if that was `ip`, `ip link set {name} xdp off`")
        };
        let text = format!(
            "{name} has an XDP program already, number {}{called} ({}), which is not replaced: {cure}",
            program.id, program.mode
        );
        findings.push(Finding::error(Topic::Program, text));
    }
    match interface.xdp_features {
        None => findings.push(Finding::note(
            Topic::NativeXdp,
            format!(
                "{name}: the kernel can't tell what its driver {driver} can do for XDP: Linux 6.3 and later can"
            ),
        )),
        Some(features) if features.native && !features.zero_copy => findings.push(Finding::note(
            Topic::Path,
            format!(
                "{name}: its driver {driver} has no zero-copy: the kernel copies each packet, about a million a \
                 second and core"
            ),
        )),
        Some(_) => {}
    }
    findings
}

/// Why XDP programs can't run in the driver, as far as can be known before it is tried.
fn native_refused(interface: &Interface, frame: u32) -> Vec<String> {
    let (name, driver) = (&interface.name, &interface.driver.name);
    let Some(features) = interface.xdp_features else { return Vec::new() };
    // The kernel takes native XDP out of a veth's features then.
    let crowded = interface.peer.as_ref().filter(|peer| peer.tx_queues > interface.queues.rx);
    let is_veth = interface.kind.as_deref() == Some("veth");
    if crowded.is_some() || (is_veth && !features.native) {
        let (other, count) = crowded.map_or((String::new(), String::new()), |peer| {
            (format!(" {}", peer.name), format!(" ({})", peer.tx_queues))
        });
        return vec![format!(
            "{name} has fewer receive queues ({}) than its other end{other} has transmit queues{count}, so it refuses \
             native XDP: generic XDP is slower; make the pair with as many",
            interface.queues.rx
        )];
    }
    if !features.native {
        return vec![format!(
            "{name}: its driver {driver} has no native XDP: generic XDP is several times slower; choose another NIC \
             or, for a stacked interface (bond, bridge, VLAN), the one below"
        )];
    }
    let mut refused = Vec::new();
    // virtio_net says that it has native XDP and refuses it all the same, when the host gives it super-segments and
    // has no way to be asked not to. (With one, the driver asks by itself.)
    if driver == "virtio_net" && interface.gro_hw.on && !interface.gro_hw.changeable {
        refused.push(format!(
            "{name}: virtio_net refuses native XDP since the host joins packets and can't be told to stop: generic \
             XDP is slower; start the virtual machine with ctrl_guest_offloads=on, or guest_tso4, guest_tso6, \
             guest_ecn, guest_ufo and guest_csum off"
        ));
    }
    let (mtu, longest) = (interface.mtu, longest(interface));
    if longest > frame && !features.multi_buffer {
        refused.push(format!(
            "{name}: with its MTU of {mtu} a packet has up to {longest} bytes, a frame holds {frame}, and its driver \
             has no native XDP for packets of several frames: generic XDP is several times slower; {}",
            shorter(interface, frame)
        ));
    }
    refused
}

/// Why no socket gets a packet that native XDP gives it, if that is so.
///
/// The kernel runs a bond's program on its ports, and gives packets to no socket but those that are bound to the port (`xsk_rcv_check`).
/// It counts none of the others, which are lost. Where a port's driver has no native XDP the bond has none either, and generic XDP sees
/// packets once they are the bond's.
fn no_sockets(interface: &Interface) -> Option<String> {
    let is_stacked = matches!(interface.kind.as_deref(), Some("bond" | "team"));
    if !is_stacked || interface.xdp_features.is_some_and(|features| !features.native) {
        return None;
    }
    let name = &interface.name;
    let ports = match &interface.ports[..] {
        [] => "which it has none of".into(),
        ports => ports.iter().map(|port| format!("xdp:{port}")).collect::<Vec<_>>().join(", "),
    };
    Some(format!(
        "{name} is no place for AF_XDP sockets: XDP sees its packets on the ports below it, where the kernel loses what is given to \
         sockets of {name}; open the ports ({ports}), or, where no rules are, take --xdp generic, several times slower"
    ))
}

/// Ethernet header and two VLAN tags, bytes: what a packet is longer than its interface's MTU at most.
pub const HEADERS: u32 = 14 + 2 * 4;

fn longest(interface: &Interface) -> u32 {
    interface.mtu.saturating_add(HEADERS)
}

/// How to have packets of up to so many bytes.
fn shorter(interface: &Interface, longest: u32) -> String {
    format!("`ip link set {} mtu {}`", interface.name, longest.saturating_sub(HEADERS))
}

/// That packets may be longer than all frames that one may have hold, if it is so.
fn too_long(interface: &Interface, frame: u32) -> Option<String> {
    let most = frame.saturating_mul(MAX_CHUNKS);
    (longest(interface) > most).then(|| {
        let (name, mtu) = (&interface.name, interface.mtu);
        format!(
            "the MTU of {name} is {mtu}, more than the {MAX_CHUNKS} frames of a packet hold: set it to {} or less ({})",
            most.saturating_sub(HEADERS),
            shorter(interface, most)
        )
    })
}

/// What packets look like, and what becomes of them.
fn packets(interface: &Interface, frame: u32) -> Vec<Finding> {
    let (name, mtu) = (&interface.name, interface.mtu);
    let too_long = too_long(interface, frame).map(|text| Finding::error(Topic::Packets, text));
    let takes_several = longest(interface) > frame
        && too_long.is_none()
        && interface.xdp_features.is_some_and(|features| features.multi_buffer);
    let mut findings: Vec<Finding> = too_long.into_iter().collect();
    let mut note = |text| findings.push(Finding::note(Topic::Packets, text));
    if takes_several {
        note(format!(
            "{name}: its MTU of {mtu} takes several frames per packet ({frame} bytes each), which is slower: {}",
            shorter(interface, frame)
        ));
    }
    if interface.vlan_strip.on && interface.kind.is_none() {
        note(format!(
            "{name}: the NIC takes VLAN tags off before XDP sees the packet: `ethtool -K {name} rxvlan off` leaves them in"
        ));
    }
    let is_veth = interface.kind.as_deref() == Some("veth");
    if is_veth && !interface.gro.on && interface.xdp_program.is_none() {
        note(format!(
            "{name}: with GRO off and no XDP program on it, what other XDP programs redirect to its other end is \
             dropped: `ethtool -K {name} gro on`"
        ));
    }
    findings
}

/// The way between the NIC and memory.
fn path(interface: &Interface) -> Vec<Finding> {
    let name = &interface.name;
    let mut findings = Vec::new();
    if let Some(pcie) = interface.pcie.filter(|pcie| pcie.mbps() < pcie.max_mbps() * 0.99) {
        let text = format!(
            "{name}: its PCIe link is x{} at {} GT/s of x{} at {}: {:.1} Gbit/s at most; try another slot",
            pcie.lanes,
            pcie.gigatransfers,
            pcie.max_lanes,
            pcie.max_gigatransfers,
            pcie.mbps() / 1000.0
        );
        let narrow = interface.speed_mbps.is_none_or(|speed| pcie.mbps() * 0.9 < f64::from(speed));
        findings.push(if narrow {
            Finding::warning(Topic::Path, text)
        } else {
            Finding::note(Topic::Path, text)
        });
    }
    if let Some(pause) = interface.pause.filter(|pause| pause.rx || pause.tx) {
        let which = match (pause.rx, pause.tx) {
            (true, true) => "obeys and sends",
            (true, false) => "obeys",
            _ => "sends",
        };
        let text = format!(
            "{name} {which} pause frames, so one side can stop the other: `ethtool -A {name} autoneg off rx off tx off`"
        );
        findings.push(Finding::warning(Topic::Path, text));
    }
    findings
}

/// Which rights this process lacks for AF_XDP.
pub(super) fn rights() -> Option<Finding> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    lacking(&status).map(|text| Finding::error(Topic::Rights, text))
}

fn lacking(status: &str) -> Option<String> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let effective = u64::from_str_radix(line.trim(), 16).ok()?;
    let has = |bit: u32| effective >> bit & 1 == 1;
    // linux/capability.h; CAP_SYS_ADMIN (21) includes CAP_BPF, as it did before there was one.
    let lacking: Vec<&str> =
        [(has(12), "CAP_NET_ADMIN"), (has(13), "CAP_NET_RAW"), (has(39) || has(21), "CAP_BPF")]
            .into_iter()
            .filter_map(|(has, name)| (!has).then_some(name))
            .collect();
    (!lacking.is_empty())
        .then(|| format!("AF_XDP needs {}, which this process lacks: run it as root", lacking.join(" and ")))
}

#[cfg(test)]
mod tests;
