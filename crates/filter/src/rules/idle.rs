//! Rules that can do nothing, by what stands before them or by what never comes to rules.

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
}

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
