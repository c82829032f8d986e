//! Rules that can do nothing, by what stands before them or by what never comes to rules.

use std::ops::RangeInclusive;
use std::slice;

use super::{Action, Condition, Prefix, Rule};
use crate::Expression;
use crate::xdp::NeverTake;

impl Rule {
    /// Whether it ends the course of every packet, so that no rule behind it is met.
    pub fn ends_all(&self) -> bool {
        let Condition { expression, from, to, from_ports, to_ports, names, payload, established } =
            &self.condition;
        let has_lists = !from.is_empty() || !to.is_empty() || !from_ports.is_empty() || !to_ports.is_empty();
        let decides = matches!(self.action, Action::Drop | Action::Pass | Action::Steer(_));
        let all = expression.as_ref().is_none_or(Expression::matches_all);
        decides
            && !self.dry_run
            && all
            && !has_lists
            && names.is_empty()
            && payload.is_empty()
            && established.is_none()
    }

    /// What its expression can't be about, and the rest of it only is; `None` where nothing of the kind is seen.
    pub fn contradicts_itself(&self) -> Option<&'static str> {
        let expression = self.condition.expression.as_ref().filter(|expression| !expression.matches_all())?;
        // With the tags behind which they are looked for.
        let may_be = |tags: &[&str], what: &str| {
            tags.iter().any(|tag| expression.may_match_also(&format!("{tag}{what}")))
        };
        if !self.condition.names.is_empty() && !may_be(&["", "vlan and ", "vlan and vlan and "], "udp") {
            return Some("names, which are asked for over UDP, and its match excludes UDP");
        }
        if self.action.answers_syns() && !may_be(&[""], "tcp") {
            return Some("SYNs, and its match excludes TCP");
        }
        None
    }

    /// Whether it gives user space all TCP that a rule behind it is about, which the kernel's program then has no say in; of that what
    /// goes to `port` alone, where it is given. As far as that is seen.
    pub fn takes_tcp_of(&self, behind: &Condition, port: Option<&RangeInclusive<u16>>) -> bool {
        let ports = port.map_or(&behind.to_ports[..], slice::from_ref);
        let Condition { expression, from, to, from_ports, established, .. } = &self.condition;
        self.asks_user_space()
            && established.is_none()
            && are_within(&behind.from, from, prefix_is_within)
            && are_within(&behind.to, to, prefix_is_within)
            && are_within(&behind.from_ports, from_ports, range_is_within)
            && are_within(ports, self.condition.wanted_ports(), range_is_within)
            && expression.as_ref().is_none_or(|ours| ours.matches_all() || tcp_is_within(behind, port, ours))
    }
}

/// Whether all that a list is about is in another one; an empty list is about everything.
fn are_within<T: PartialEq>(list: &[T], other: &[T], is_within: impl Fn(&T, &T) -> bool) -> bool {
    let is_long = list.len().saturating_mul(other.len()) > MOST_PAIRS;
    other.is_empty()
        || list == other
        || (!list.is_empty()
            && !is_long
            && list.iter().all(|one| other.iter().any(|other| is_within(one, other))))
}

/// More are not compared: lists may have hundreds of thousands of entries.
const MOST_PAIRS: usize = 1 << 20;

fn prefix_is_within(one: &Prefix, other: &Prefix) -> bool {
    other.bits() <= one.bits() && other.contains(one.address())
}

fn range_is_within(one: &RangeInclusive<u16>, other: &RangeInclusive<u16>) -> bool {
    other.contains(one.start()) && other.contains(one.end())
}

/// Whether all TCP that a condition is about, to one of its ports where that is given, matches an expression.
fn tcp_is_within(condition: &Condition, port: Option<&RangeInclusive<u16>>, other: &Expression) -> bool {
    let mut text = "tcp".to_owned();
    if let Some(port) = port {
        text += &format!(" and dst portrange {}-{}", port.start(), port.end());
    }
    if let Some(own) = condition.expression.as_ref().filter(|own| !own.matches_all()) {
        text += &format!(" and ({own})");
    }
    // Behind a tag or in a tunnel the other one would mean something else.
    let digs = SHIFTS.iter().any(|shift| text.contains(shift));
    !digs && text.parse::<Expression>().is_ok_and(|text| text.is_within(&other.to_string()))
}

/// Words of expressions behind which others are about other bytes.
const SHIFTS: [&str; 6] = ["vlan", "mpls", "pppoes", "geneve", "vxlan", "gtp"];

impl NeverTake {
    /// Whether all packets that a condition is about are on the list, as far as that is seen.
    pub fn covers(&self, condition: &Condition) -> bool {
        let is_gateway = |prefix: &Prefix| {
            let whole = if prefix.address().is_ipv4() { 32 } else { 128 };
            prefix.bits() == whole && self.gateways.contains(&prefix.address())
        };
        let are_gateways = |list: &[Prefix]| !list.is_empty() && list.iter().all(is_gateway);
        let is_within = |expression: &Expression| {
            // The list does not look into tunnels.
            let digs = ["mpls", "pppoes", "geneve", "vxlan", "gtp"]
                .iter()
                .any(|tunnel| expression.to_string().contains(tunnel));
            !digs && expression.is_within(&self.untagged("host"))
        };
        are_gateways(&condition.from)
            || are_gateways(&condition.to)
            || condition.expression.as_ref().is_some_and(is_within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_udp_and_syns_without_tcp_are_seen() {
        let seen = |action, names: bool, text: &str| {
            let names = names.then(|| "bad".parse().unwrap()).into_iter().collect();
            let expression = Some(text.parse().unwrap());
            let condition = Condition { expression, names, ..Condition::default() };
            let name = String::new();
            let rule = Rule { name, condition, action, sample: None, expires: None, dry_run: false };
            rule.contradicts_itself().is_some()
        };
        for text in ["tcp", "vlan and tcp", "tcp dst port 53", "arp", "icmp or tcp"] {
            assert!(seen(Action::Drop, true, text) && !seen(Action::Drop, false, text), "{text}");
        }
        for text in [
            "",
            "udp",
            "ip",
            "ip6",
            "port 53",
            "vlan 7",
            "vlan 7 and udp",
            "ether[0] = 2",
            "not tcp",
            "len > 80",
        ] {
            assert!(!seen(Action::Drop, true, text), "{text}");
        }
        for text in ["udp", "udp dst port 80", "icmp"] {
            assert!(seen(Action::SynCookie, false, text), "{text}");
        }
        for text in ["", "tcp", "port 80", "not udp", "ip and dst port 80"] {
            assert!(!seen(Action::SynCookie, false, text), "{text}");
        }
    }

    #[test]
    fn what_is_never_dropped_is_seen_in_expressions_and_lists() {
        let gateway = "10.0.0.254".parse().unwrap();
        let never = NeverTake { gateways: vec![gateway], ..NeverTake::default() };
        let covers = |text: &str| {
            let expression = Some(text.parse().unwrap());
            never.covers(&Condition { expression, ..Condition::default() })
        };
        for text in [
            "arp",
            "arp or src host 10.0.0.254",
            "icmp6 and ip6[40] = 135 and ip6[7] = 255",
            "udp and host 10.0.0.254",
            "vlan 7 and arp",
        ] {
            assert!(covers(text), "{text}");
        }
        for text in [
            "",
            "udp",
            "arp or udp",
            "icmp6",
            "icmp6 and ip6[40] = 135",
            "not arp",
            "vlan 7 or arp",
            "mpls and host 10.0.0.254",
            "net 10.0.0.0/24",
        ] {
            assert!(!covers(text), "{text}");
        }
        let from = |list: &[&str]| {
            let from = list.iter().map(|text| text.parse().unwrap()).collect();
            never.covers(&Condition { from, ..Condition::default() })
        };
        assert!(from(&["10.0.0.254"]) && !from(&[]) && !from(&["10.0.0.254/31"]));
        assert!(!from(&["10.0.0.254", "10.0.0.1"]));
    }
}
