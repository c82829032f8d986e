//! What a NIC is asked for when it must take all packets that a condition is about, and no others: those that it gives to a queue, or
//! drops, are seen by nobody else.
//!
//! A NIC looks behind a VLAN tag, whether a condition does or not: packets with a tag and without one are the same to it unless an id
//! is named. It finds no ports, and no protocol, in fragments. What else it would take too much or too little is refused.

use std::fmt;

use crate::flows::Flow;
use crate::{Expression, Options};

use super::in_nic::{Candidates, not_by_headers_alone};
use super::{Condition, Rule};

/// Packets that a NIC knows by their headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// Those of an EtherType that is not IP's.
    EtherType(u16),
    /// Those of a flow of IPv4; with the id of their VLAN tag, where that is asked for.
    Ipv4(Flow, Option<u16>),
}

/// Why a NIC can't be asked for what a rule is about, and what it could be asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}{}", shown(instead.as_ref()))]
pub struct Inexact {
    /// Which part of it, and why.
    pub why: String,
    /// An expression that says the part that can be.
    pub instead: Option<String>,
}

fn shown(instead: Option<&String>) -> impl fmt::Display {
    instead.map_or_else(String::new, |text| format!(": write: {text}"))
}

/// What a NIC is asked for, for a rule: all that it is about and nothing else.
///
/// # Errors
/// [`Inexact`], with the first part that no NIC is asked for.
pub fn exact(rule: &Rule) -> Result<Vec<Known>, Inexact> {
    if let Some(why) = not_by_headers_alone(rule) {
        return Err(Inexact { why: why.into(), instead: None });
    }
    let condition = &rule.condition;
    all_known(condition)
        .map_err(|why| Inexact { why, instead: condition.expression.as_ref().and_then(narrower) })
}

fn all_known(condition: &Condition) -> Result<Vec<Known>, String> {
    let whole = condition.expression.as_ref();
    let behind = whole.and_then(Expression::behind_vlan);
    let (vlan, expression) = match &behind {
        Some((vlan, rest)) => (Some(*vlan), Some(rest)),
        None => (None, whole),
    };
    let Candidates { flows, ipv6, other_types } = Candidates::of(condition, expression);
    let mut known = Vec::new();
    if other_types {
        let types = expression.and_then(Expression::ether_types).filter(|_| vlan.is_none());
        known.extend(types.ok_or(OTHER_TYPES)?.into_iter().map(Known::EtherType));
    }
    if ipv6 {
        return Err(
            "IPv6 is a part of it, of which NICs may look behind extension headers, where rules do not"
                .into(),
        );
    }
    for flow in flows.ok_or("it is more flows than a NIC can be asked for")? {
        let settled =
            whole.map(|it| vlan.map_or_else(|| it.settled(&flow, 0), |vlan| it.settled_in_vlan(&flow, vlan)));
        if settled.is_some_and(|settled| settled.can_fail) {
            return Err(format!(
                "it asks for more than addresses, protocols and ports: a NIC would take all of '{flow}'"
            ));
        }
        known.push(Known::Ipv4(flow, vlan));
    }
    if known.is_empty() {
        Err("it names no addresses, protocols or ports of IPv4, and no EtherType".into())
    } else {
        Ok(known)
    }
}

const OTHER_TYPES: &str = "packets that are neither IPv4 nor all of an EtherType are a part of it";

/// What an expression says of IPv4, if that can be asked for.
fn narrower(expression: &Expression) -> Option<String> {
    let text = expression.to_string();
    // What stands behind a tag must stay there.
    let (vlan, rest) = match expression.behind_vlan() {
        Some((vlan, _)) => {
            (format!("vlan {vlan} and "), text.split_once(" and ").map_or("", |(_, rest)| rest))
        }
        None => (String::new(), &*text),
    };
    let texts = match rest {
        "" => vec![format!("{vlan}ip")],
        _ => vec![format!("{vlan}ip and {rest}"), format!("{vlan}ip and ({rest})")],
    };
    texts.into_iter().find(|text| {
        let expression = Expression::possible(text, &Options::default()).ok();
        expression
            .is_some_and(|it| all_known(&Condition { expression: Some(it), ..Condition::default() }).is_ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NoNames;
    use crate::rules::Action;

    fn rule(condition: Condition) -> Rule {
        Rule {
            name: "r".into(),
            condition,
            action: Action::Drop,
            sample: None,
            expires: None,
            dry_run: false,
        }
    }

    fn told(text: &str) -> Result<Vec<String>, String> {
        let expression = Expression::new(text, &Options { names: &NoNames, netmask: None }).unwrap();
        let rule = rule(Condition { expression: Some(expression), ..Condition::default() });
        exact(&rule).map_err(|error| error.to_string()).map(lines)
    }

    fn lines(known: Vec<Known>) -> Vec<String> {
        let line = |known| match known {
            Known::EtherType(kind) => format!("{kind:#06x}"),
            Known::Ipv4(flow, None) => flow.to_string(),
            Known::Ipv4(flow, Some(vlan)) => format!("{flow} vlan {vlan}"),
        };
        known.into_iter().map(line).collect()
    }

    #[test]
    fn what_headers_say_is_asked_for_and_no_more() {
        for (text, says) in [
            ("ip and udp dst port 53", &["udp4 dst-port 53"][..]),
            ("anyvlan and ip and udp dst port 53", &["udp4 dst-port 53"]),
            ("src net 192.0.2.0/24 and tcp", &["tcp4 src-ip 192.0.2.0/24"]),
            ("ip and udp port 53", &["udp4 src-port 53", "udp4 dst-port 53"]),
            ("ip", &["ip4"]),
            ("icmp", &["ip4 l4proto 1"]),
            ("vlan 7 and ip", &["ip4 vlan 7"]),
            ("vlan 7 and ip and udp dst port 53", &["udp4 dst-port 53 vlan 7"]),
            ("vlan 7 and (ip and tcp)", &["tcp4 vlan 7"]),
            ("ether proto 0x88cc", &["0x88cc"]),
            ("ether proto 0x88b8 or 0x88b9 or 0x88ba", &["0x88b8", "0x88b9", "0x88ba"]),
            ("arp or icmp", &["0x0806", "ip4 l4proto 1"]),
        ] {
            let (mut told, mut says) = (told(text).unwrap(), says.to_vec());
            told.sort();
            says.sort_unstable();
            assert_eq!(told, says, "{text}");
        }
        let lists = Condition {
            expression: Some(Expression::new("ip and udp", &Options::default()).unwrap()),
            from: vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()],
            to_ports: vec![53..=53, 67..=67],
            ..Condition::default()
        };
        let both = ["udp4 src-ip 10.0.0.0/8 dst-port 53", "udp4 src-ip 10.0.0.0/8 dst-port 67"];
        assert_eq!(lines(exact(&rule(lists)).unwrap()), both);
    }

    #[test]
    fn what_would_be_more_or_less_is_refused_with_what_can_be() {
        const V6: &str =
            "IPv6 is a part of it, of which NICs may look behind extension headers, where rules do not";
        for (text, why, instead) in [
            ("udp dst port 53", V6, Some("ip and udp dst port 53")),
            ("tcp or udp", V6, Some("ip and (tcp or udp)")),
            ("vlan 7 and udp dst port 53", V6, Some("vlan 7 and ip and udp dst port 53")),
            ("ip6 and udp", V6, None),
            ("src net 192.0.2.0/24", OTHER_TYPES, Some("ip and src net 192.0.2.0/24")),
            ("", OTHER_TYPES, Some("ip")),
            ("vlan 7", OTHER_TYPES, Some("vlan 7 and ip")),
            ("vlan 7 and arp", OTHER_TYPES, None),
            ("ether src 02:00:00:00:00:01", OTHER_TYPES, None),
            ("arp or ether[12:2] < 0x600", OTHER_TYPES, None),
            ("ether[12:2] > 0xf800", OTHER_TYPES, None),
            (
                "ip and udp and len > 400",
                "it asks for more than addresses, protocols and ports: a NIC would take all of 'udp4'",
                None,
            ),
            (
                "ip and tcp and not port 22",
                "it asks for more than addresses, protocols and ports: a NIC would take all of 'tcp4'",
                None,
            ),
            ("vlan 7 and vlan 8 and ip", OTHER_TYPES, None),
        ] {
            let wanted = Inexact { why: why.into(), instead: instead.map(str::to_owned) };
            assert_eq!(told(text), Err(wanted.to_string()), "{text}");
        }
        let ports = rule(Condition { to_ports: vec![53..=53], ..Condition::default() });
        assert_eq!(exact(&ports), Err(Inexact { why: V6.into(), instead: None }));
        let dry = Rule { dry_run: true, ..rule(Condition::default()) };
        assert_eq!(exact(&dry).unwrap_err().to_string(), "dry_run drops nothing");
    }
}
