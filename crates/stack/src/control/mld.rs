//! Which groups we hear, told to switches and routers that want to know (RFC 3810): those of neighbour discovery.
//!
//! A host that only wants everything sent to its groups says so in few words: it joins, leaves, and answers queries.
//! The current state goes out once for all groups, after at most the time a query allows.

use std::time::Duration;

use bywash_frame::Pool;
use bywash_wire::mld::{self, Query, Record};
use bywash_wire::zerocopy::{FromBytes, IntoBytes};
use bywash_wire::{IcmpHeader, icmpv6};

use super::address::interface_identifier;
use super::icmp6::{Message, Received};
use super::{BURST_INTERVAL, Control};
use crate::{Address, InterfaceId, Timestamp};

/// How often a change is told (RFC 3810, 9.1), and how far apart (9.11: at most a second).
const ROBUSTNESS: u8 = 2;
const INTERVAL: Duration = Duration::from_secs(1);
/// `ff02::16`, all routers that speak version 2 (RFC 3810, 5.2.14).
const ALL_ROUTERS: u8 = 0x16;
/// Bytes that a query of version 2 has at least beyond one of version 1 (RFC 3810, 8.1).
const VERSION_2: usize = 4;
/// Records of one report: they fit the smallest link.
const RECORDS: usize = 50;

/// A record of a report: on which link, of which kind, about which group.
type Told = (InterfaceId, u8, Address);

/// Reports that are to be sent.
#[derive(Debug, Default)]
pub(super) struct Listening {
    changes: Vec<Change>,
    /// Answers to queries: when, and on which link.
    answers: Vec<(Timestamp, InterfaceId)>,
}

#[derive(Debug)]
struct Change {
    at: Timestamp,
    left: u8,
    interface: InterfaceId,
    group: Address,
    kind: u8,
}

impl Change {
    fn told(&self) -> Told {
        (self.interface, self.kind, self.group)
    }
}

impl Listening {
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        let changes = self.changes.iter().map(|change| change.at);
        changes.chain(self.answers.iter().map(|(at, _)| *at)).min()
    }
}

impl Control {
    /// All groups that we hear, on all links.
    pub(super) fn groups(&self) -> impl Iterator<Item = Address> {
        let six = self.addresses.iter().filter(|our| !our.prefix.address().is_v4());
        six.flat_map(|our| {
            let id = our.interface;
            let routers = self.forwarding.then(|| Address::link_group(2, id));
            [Some(our.prefix.address().solicited_node(id)), Some(Address::link_group(1, id)), routers]
        })
        .flatten()
    }

    /// An address of ours is new: we hear its group (RFC 4861, 7.2.1), and say so at `at`.
    pub(super) fn join(&mut self, at: Timestamp, id: InterfaceId, address: Address) {
        self.change(at, id, address, mld::CHANGE_TO_EXCLUDE);
    }

    /// An address of ours is gone.
    pub(super) fn leave(&mut self, id: InterfaceId, address: Address) {
        let group = address.solicited_node(id);
        if !self.groups().any(|other| other == group) {
            self.change(Timestamp::ZERO, id, address, mld::CHANGE_TO_INCLUDE);
        }
    }

    fn change(&mut self, at: Timestamp, interface: InterfaceId, address: Address, kind: u8) {
        if address.is_v4() || self.mac(interface).is_none() {
            return;
        }
        let group = address.solicited_node(interface);
        // Of two addresses with one group the one that is asked for first may be the other.
        let pending = self.listening.changes.iter().find(|change| change.told() == (interface, kind, group));
        let at = pending.map_or(at, |pending| pending.at.min(at));
        self.listening.changes.retain(|change| change.group != group);
        self.listening.changes.push(Change { at, left: ROBUSTNESS, interface, group, kind });
    }

    /// Takes a query: the answer goes out within the time it allows (RFC 3810, 6.2). One about a group that is not
    /// ours needs none. `alert`: its IPv6 header was followed by a router alert.
    pub(super) fn queried(&mut self, now: Timestamp, received: &Received<'_>, alert: bool) {
        let Ok((query, rest)) = Query::ref_from_prefix(received.bytes) else { return };
        let id = received.interface;
        // 6.2: from the link, from a router's link-local address, and so that routers would see it.
        if received.hop_limit != 1 || !received.source.is_link_local() || !alert {
            return;
        }
        // 8.1: of version 1 or of version 2.
        if !rest.is_empty() && rest.len() < VERSION_2 {
            return;
        }
        let group = Address::from(query.group()).with_zone(id);
        let ours = group.is_unspecified() || self.groups().any(|other| other == group);
        let Some(mac) = self.mac(id).filter(|_| ours) else { return };
        // Hosts must not all answer at once; ours has its own place in the time.
        let place = u64::try_from(interface_identifier(mac) % 1000).unwrap_or(0);
        let delay = Duration::from_micros(u64::from(query.response_time(rest)) * place);
        if !self.listening.answers.iter().any(|(at, link)| *link == id && *at <= now + delay) {
            self.listening.answers.retain(|(_, link)| *link != id);
            self.listening.answers.push((now + delay, id));
        }
    }

    /// Sends the reports that are due. One for which there is no frame is due again soon.
    pub(super) fn advance_listening(&mut self, now: Timestamp, pool: &mut Pool) {
        let changes = self.listening.changes.iter().filter(|change| change.at <= now);
        let mut reports: Vec<Told> = changes.map(Change::told).collect();
        let due: Vec<InterfaceId> =
            self.listening.answers.extract_if(.., |(at, _)| *at <= now).map(|(_, id)| id).collect();
        for id in &due {
            // RFC 3810, 6: nobody reports that he hears all nodes' group.
            let all_nodes = Address::link_group(1, *id);
            let groups = self.groups().filter(|group| group.zone() == Some(*id) && *group != all_nodes);
            reports.extend(groups.map(|group| (*id, mld::MODE_IS_EXCLUDE, group)));
        }
        reports.sort_unstable();
        reports.dedup();
        let mut unsent: Vec<Told> = Vec::new();
        for of_link in reports.chunk_by(|a, b| a.0 == b.0) {
            for part in of_link.chunks(RECORDS) {
                if !self.send_report(part, pool) {
                    unsent.extend(part);
                }
            }
        }
        let again = now + BURST_INTERVAL;
        self.listening.changes.retain_mut(|change| {
            if change.at <= now {
                match unsent.binary_search(&change.told()) {
                    Ok(_) => change.at = again,
                    Err(_) => (change.at, change.left) = (now + INTERVAL, change.left - 1),
                }
            }
            change.left > 0
        });
        let is_answer =
            |id: &InterfaceId| unsent.iter().any(|told| (told.0, told.1) == (*id, mld::MODE_IS_EXCLUDE));
        self.listening.answers.extend(due.into_iter().filter(is_answer).map(|id| (again, id)));
    }

    /// `false`: there is no frame.
    fn send_report(&mut self, records: &[Told], pool: &mut Pool) -> bool {
        let Some((id, ..)) = records.first().copied() else { return true };
        let count = u32::try_from(records.len()).unwrap_or(0);
        let header =
            IcmpHeader { kind: icmpv6::LISTENER_REPORT, code: 0, checksum: 0.into(), rest: count.into() };
        let mut bytes = header.as_bytes().to_vec();
        for (_, kind, group) in records {
            let Some(group) = group.v6() else { continue };
            bytes.extend_from_slice(Record::new(*kind, group).as_bytes());
        }
        let destination = Address::link_group(ALL_ROUTERS, id);
        // RFC 3810, 5.2.13: from a link-local address, or from none while there is none.
        let nobody = Address::from(std::net::Ipv6Addr::UNSPECIFIED);
        let source =
            self.address_on(Some(id), destination).filter(|ours| ours.is_link_local()).unwrap_or(nobody);
        let message = Message { interface: id, source, destination, to: None, hop_limit: 1, alert: true };
        self.send_message(&message, &mut bytes, pool)
    }
}
