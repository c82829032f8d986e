//! The addresses of this machine that SYNs are answered for, and its MACs, as programs find them. They are looked at beside the gateways:
//! one that has come since is not answered for yet, its SYNs go on.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, PoisonError};

use bywash_filter::rules::{OwnKey, RuleSet};
use bywash_sys::bpf::{BpfError, Map, MapKind, MapSpec};
use bywash_sys::netlink::NetlinkError;
use bywash_sys::route::{Link, Route};

/// Most addresses that are answered for; SYNs to others go on.
const MOST: usize = 1 << 14;

/// Controllers above each other that are followed: a port of a bond that is a port of a bridge.
const CONTROLLERS: usize = 4;

/// The map of them.
pub(super) struct Own {
    map: Map,
    /// What is in it.
    known: Mutex<BTreeSet<OwnKey>>,
}

impl Own {
    /// Without any address yet; `None` where no rule answers SYNs.
    pub(super) fn create(set: &RuleSet) -> Result<Option<Self>, BpfError> {
        if !set.rules().iter().any(|rule| rule.action.answers_syns()) {
            return Ok(None);
        }
        let [key_size, entries] = [OwnKey::SIZE, MOST].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let kind = MapKind::Hash;
        let spec = MapSpec { kind, name: "bywash_own", key_size, value_size: 4, entries, mappable: false };
        Ok(Some(Self { map: Map::create(&spec)?, known: Mutex::default() }))
    }

    /// Has these in it and no others. What can't be put in is tried again the next time.
    pub(super) fn set(&self, keys: &BTreeSet<OwnKey>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|key| keys.contains(key) || self.map.delete(&key.to_bytes()).is_err());
        for key in keys {
            if !known.contains(key) && self.map.update(&key.to_bytes(), &[0; 4]).is_ok() {
                known.insert(*key);
            }
        }
    }
}

impl AsRawFd for Own {
    fn as_raw_fd(&self) -> RawFd {
        self.map.as_raw_fd()
    }
}

/// By which MACs packets for the machine come in by an interface, and to which addresses: any that it passes on, and those of all
/// interfaces, but link-local ones of this one alone, and of the bridge or bond that it is a port of.
pub(super) fn find(route: &mut Route, interface: u32) -> Result<BTreeSet<OwnKey>, NetlinkError> {
    let mut stations = Vec::<Link>::new();
    let mut next = Some(interface);
    while let Some(index) = next.filter(|_| stations.len() <= CONTROLLERS) {
        let Some(link) = route.link_at(index)? else { break };
        next = link.controller;
        stations.push(link);
    }
    let addresses = route.addresses()?.into_iter().filter(|address| {
        let ip = address.prefix.address;
        let is_here = stations.iter().any(|link| link.index == address.index);
        !ip.is_loopback() && !ip.is_multicast() && (!address.link_local || is_here)
    });
    let addresses: BTreeSet<_> =
        addresses.map(|address| Some(address.prefix.address)).chain([None]).collect();
    let macs: BTreeSet<_> = stations.iter().filter_map(|link| Some(link.mac?.0)).collect();
    let keys = macs.iter().flat_map(|&mac| addresses.iter().map(move |&address| OwnKey { mac, address }));
    Ok(keys.collect())
}
