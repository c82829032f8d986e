//! Why nothing is sent: what a user would have to find out otherwise.

use bywash_port::{Port, PortName};
use bywash_sys::interface::{self, Interface};

use super::worker::Figures;

/// What keeps packets from leaving, and what to do, as far as can be seen. `figures` are those of all queues.
pub(super) fn why_nothing(port: &dyn Port, figures: &[Figures]) -> String {
    let name = port.name();
    // The longest packet is for advice that is not asked for here.
    let state = name.interface().map(|interface| (interface, interface::one(interface, u32::MAX).ok()));
    let in_flight = figures.iter().map(|figures| figures.in_flight).sum();
    let errors = figures.iter().map(|figures| figures.counters.errors).sum();
    reason(name, state, in_flight, errors)
}

/// Why nothing would leave, of a port that counts what it hands over as sent: the kernel loses all that is handed to an
/// interface without a link.
pub(super) fn obstacle(port: &dyn Port) -> Option<String> {
    let PortName::Packet { interface } = port.name() else { return None };
    let state = interface::one(interface, u32::MAX).ok().filter(|state| !state.up || !state.carrier)?;
    Some(reason(port.name(), Some((interface.as_str(), Some(state))), 0, 0))
}

fn reason(name: &PortName, state: Option<(&str, Option<Interface>)>, in_flight: u64, errors: u64) -> String {
    match &state {
        Some((interface, None)) => {
            return format!("{interface} is gone: it was removed or moved to another namespace");
        }
        Some((interface, Some(state))) if !state.up => {
            return format!("{interface} is down: `ip link set {interface} up`");
        }
        Some((interface, Some(state))) if !state.carrier => {
            let partner = match (&state.peer, name) {
                (Some(peer), _) => {
                    format!("its other end {} is down: `ip link set {} up`", peer.name, peer.name)
                }
                (None, PortName::Tap { .. }) => "no program has it open".into(),
                (None, _) => "its partner (cable, switch port, other end) is not up".into(),
            };
            return format!("{interface} has no carrier: {partner}");
        }
        _ => {}
    }
    if errors > 0 {
        return format!("{name} refuses every packet ({errors} so far): its counters say why");
    }
    if let PortName::Link { .. } = name {
        return format!(
            "nobody takes packets out at the other end of {name}: start who is to receive there, on {name} too"
        );
    }
    if in_flight > 0 {
        let cure = match name {
            PortName::Xdp { .. } => {
                "the driver does not begin, or does not say that it has; is the queue one of those in use \
                 (`ethtool -l`), and does it help to let the kernel copy (--zero-copy off)?"
            }
            _ => "what sends them does not begin, or does not say that it has",
        };
        return format!("{in_flight} packets lie in the ring of {name} and none is completed: {cure}");
    }
    match name {
        PortName::Loop { .. } => format!("{name} is full: nobody takes packets out at its other end"),
        _ => format!("{name} has no room, though nothing is under way: it does not take packets at all"),
    }
}

#[cfg(test)]
mod tests {
    use bywash_sys::interface::Peer;

    use super::*;

    fn why(name: &str, state: Option<Interface>, in_flight: u64) -> String {
        let name: PortName = name.parse().unwrap();
        let is_interface = !matches!(name, PortName::Null | PortName::Loop { .. } | PortName::Link { .. });
        reason(&name, is_interface.then_some(("eth1", state)), in_flight, 0)
    }

    #[test]
    fn each_reason_names_its_cure() {
        let good = Interface { up: true, carrier: true, ..Interface::default() };
        let cases = [
            (why("xdp:eth1", None, 9), "is gone"),
            (why("xdp:eth1", Some(Interface::default()), 9), "`ip link set eth1 up`"),
            (why("xdp:eth1", Some(Interface { carrier: false, ..good.clone() }), 9), "cable"),
            (
                why("tap:eth1", Some(Interface { carrier: false, ..good.clone() }), 9),
                "no program has it open",
            ),
            (
                why(
                    "xdp:eth1",
                    Some(Interface {
                        carrier: false,
                        peer: Some(Peer { name: "eth2".into(), ..Peer::default() }),
                        ..good.clone()
                    }),
                    9,
                ),
                "`ip link set eth2 up`",
            ),
            (why("xdp:eth1", Some(good.clone()), 9), "9 packets lie in the ring"),
            (why("packet:eth1", Some(good.clone()), 0), "no room"),
            (why("loop:x", None, 0), "nobody takes packets out"),
            (why("link:/run/x", None, 9), "at the other end of link:/run/x: start who"),
            (why("link:/run/x", None, 0), "at the other end of link:/run/x: start who"),
            (reason(&"null:".parse().unwrap(), None, 5, 3), "refuses every packet (3"),
        ];
        for (reason, part) in cases {
            assert!(reason.contains(part) && !reason.contains('\n'), "{reason}");
        }
    }
}
