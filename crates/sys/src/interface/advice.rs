//! What is to be known or fixed before packets are taken from an interface.
//!
//! Each finding is one line: what, why, what to do. The list is what has cost users of AF_XDP days: drivers refuse
//! without a reason, or nothing arrives and no counter says why.

use std::fmt;

use serde::Serialize;

use super::Interface;

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

/// One thing to be known or fixed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What, why, and what to do, in one line.
    pub text: String,
}

impl Finding {
    pub(super) fn error(text: impl Into<String>) -> Self {
        Self { severity: Severity::Error, text: text.into() }
    }

    fn warning(text: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, text: text.into() }
    }

    fn note(text: impl Into<String>) -> Self {
        Self { severity: Severity::Note, text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What an `xdp:` port on it would use.
pub(super) fn would_use(interface: &Interface) -> String {
    if !interface.ethernet {
        return "nothing: no Ethernet".into();
    }
    let xdp = interface.xdp_features.unwrap_or_default();
    let native = xdp.native && !joined_by_host(interface);
    let way = if native { "native XDP" } else { "generic XDP" };
    let copy = if native && xdp.zero_copy { "zero-copy" } else { "copy" };
    let queues = interface.queues.rx.max(1);
    format!("{way}, {copy}, {queues} queue{}", if queues == 1 { "" } else { "s" })
}

/// Everything that can be said of an interface. `frame` is the longest packet that fits into one frame, in bytes.
pub(super) fn findings(interface: &Interface, frame: u32) -> Vec<Finding> {
    let name = &interface.name;
    if !interface.ethernet {
        return vec![Finding::error(format!("{name} carries no Ethernet frames: choose another interface"))];
    }
    let mut findings: Vec<Finding> = state(interface).into_iter().collect();
    findings.extend(xdp(interface));
    findings.extend(length(interface, frame));
    findings.extend(path(interface));
    if interface.kind.as_deref() == Some("veth") {
        findings.extend(veth(interface));
    }
    findings.sort_by_key(|finding| finding.severity);
    findings
}

/// Up, link, what else is on it.
fn state(interface: &Interface) -> Option<Finding> {
    let name = &interface.name;
    if !interface.up {
        Some(Finding::error(format!("{name} is down: `ip link set {name} up`")))
    } else if !interface.carrier {
        Some(Finding::warning(format!(
            "{name} has no link: nothing passes until its partner is up (cable, switch port)"
        )))
    } else {
        None
    }
}

fn xdp(interface: &Interface) -> Vec<Finding> {
    let (name, driver) = (&interface.name, &interface.driver.name);
    let mut findings = Vec::new();
    if let Some(program) = &interface.xdp_program {
        let called = if program.name.is_empty() { String::new() } else { format!(" '{}'", program.name) };
        findings.push(Finding::error(format!(
            "{name} has an XDP program already, number {}{called} ({}), which is not replaced: stop the program it \
             belongs to, or `ip link set {name} xdp off`",
            program.id, program.mode
        )));
    }
    match interface.xdp_features {
        None => findings.push(Finding::note(format!(
            "{name}: the kernel can't tell what its driver {driver} can do for XDP: Linux 6.3 and later can"
        ))),
        Some(features) if !features.native => findings.push(Finding::warning(format!(
            "{name}: its driver {driver} has no native XDP: generic XDP is several times slower; choose another NIC \
             or, for a stacked interface (bond, bridge, VLAN), the one below"
        ))),
        Some(features) if !features.zero_copy => findings.push(Finding::note(format!(
            "{name}: its driver {driver} has no zero-copy: the kernel copies each packet, about a million a second and core"
        ))),
        Some(_) => {}
    }
    if joined_by_host(interface) {
        findings.push(Finding::warning(format!(
            "{name}: virtio_net refuses native XDP since the host joins packets and can't be told to stop: generic \
             XDP is slower; start the virtual machine with ctrl_guest_offloads=on, or guest_tso4, guest_tso6, \
             guest_ecn, guest_ufo and guest_csum off"
        )));
    }
    if interface.vlan_strip.on && interface.kind.is_none() {
        findings.push(Finding::note(format!(
            "{name}: the NIC takes VLAN tags off before XDP sees the packet: `ethtool -K {name} rxvlan off` leaves them in"
        )));
    }
    findings
}

/// virtio_net says that it has native XDP and refuses it all the same, when the host gives it super-segments and has
/// no way to be asked not to. (With one, the driver asks by itself.)
fn joined_by_host(interface: &Interface) -> bool {
    interface.driver.name == "virtio_net" && interface.gro_hw.on && !interface.gro_hw.changeable
}

/// Ethernet header and two VLAN tags.
const ETHERNET: u32 = 14 + 2 * 4;

fn length(interface: &Interface, frame: u32) -> Option<Finding> {
    let (name, mtu) = (&interface.name, interface.mtu);
    let longest = mtu.saturating_add(ETHERNET);
    if longest <= frame {
        return None;
    }
    let cure = format!("`ip link set {name} mtu {}`", frame.saturating_sub(ETHERNET));
    let chains = interface.xdp_features.is_some_and(|features| features.multi_buffer);
    Some(if chains {
        Finding::note(format!(
            "{name}: its MTU of {mtu} takes several frames per packet ({frame} bytes each), which is slower: {cure}"
        ))
    } else {
        Finding::error(format!(
            "{name}: with its MTU of {mtu} a packet has up to {longest} bytes, a frame holds {frame}, and its \
             driver has no multi-buffer XDP: {cure}"
        ))
    })
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
        findings.push(if narrow { Finding::warning(text) } else { Finding::note(text) });
    }
    if let Some(pause) = interface.pause.filter(|pause| pause.rx || pause.tx) {
        let which = match (pause.rx, pause.tx) {
            (true, true) => "obeys and sends",
            (true, false) => "obeys",
            _ => "sends",
        };
        findings.push(Finding::warning(format!(
            "{name} {which} pause frames, so one side can stop the other: `ethtool -A {name} autoneg off rx off tx off`"
        )));
    }
    findings
}

/// Rules of the veth driver.
fn veth(interface: &Interface) -> Vec<Finding> {
    let name = &interface.name;
    let mut findings = Vec::new();
    if let Some(peer) = interface.peer.as_ref().filter(|peer| peer.tx_queues > interface.queues.rx) {
        findings.push(Finding::error(format!(
            "{name} has fewer receive queues ({}) than its other end {} has transmit queues ({}), so the kernel \
             refuses an XDP program: make the pair with as many",
            interface.queues.rx, peer.name, peer.tx_queues
        )));
    }
    if !interface.gro.on && interface.xdp_program.is_none() {
        findings.push(Finding::note(format!(
            "{name}: with GRO off and no XDP program on it, what other XDP programs redirect to its other end is \
             dropped: `ethtool -K {name} gro on`"
        )));
    }
    findings
}

/// Which rights this process lacks for AF_XDP.
pub(super) fn rights() -> Vec<Finding> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    lacking(&status).map_or_else(Vec::new, |text| vec![Finding::error(text)])
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
