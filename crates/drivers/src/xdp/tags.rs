//! VLAN tags stay in packets, on a port that receives.
//!
//! A NIC that takes tags off keeps them beside the packet, where an XDP program does not see them. The kernel finds them there; what
//! user space gets, what comes back from there, and what the program sends itself, has lost them: it would be another network's. So
//! the NIC leaves them in as long as the port is open, and the kernel takes them off itself.

use std::collections::BTreeMap;

use bywash_sys::ethtool::{Ethtool, Feature};
use bywash_sys::interface::Interface;
use bywash_sys::route::{Link, Route};
use bywash_sys::state::{self, Undo};

/// Features that take tags off. `ethtool -K` calls these rxvlan and rx-vlan-stag-hw-parse.
pub(super) const TAGS: [&str; 2] = ["rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"];

/// Which of these an interface could have on and off, and whether each is on.
fn switchable<'a>(features: &BTreeMap<String, Feature>, of: &[&'a str]) -> Vec<(&'a str, bool)> {
    let known = of.iter().filter_map(|name| Some((*name, features.get(*name)?)));
    known.filter(|(_, feature)| feature.changeable).map(|(name, feature)| (name, feature.on)).collect()
}

/// Has these features off, where an interface could have them on. Returns which were on.
///
/// Those that are off already are asked for, too: a process that was killed may have left them so, and `bywash cleanup`, which puts that
/// back, leaves alone what it knows to be somebody else's by now.
pub(super) fn have_off<'a, E>(
    features: &BTreeMap<String, Feature>,
    of: &[&'a str],
    mut switch_off: impl FnMut(&'a str) -> Result<(), E>,
) -> Result<Vec<&'a str>, E> {
    let switchable = switchable(features, of);
    switchable.iter().try_for_each(|(feature, _)| switch_off(feature))?;
    Ok(switchable.into_iter().filter(|(_, on)| *on).map(|(feature, _)| feature).collect())
}

/// What is told of features that are off as long as the port is open.
pub(super) fn told(interface: &str, off: &[&str]) -> String {
    format!("off on {interface} meanwhile: {}", off.join(", "))
}

/// What was done so that tags stay, and what is to be known.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) undos: Vec<Undo>,
    pub(super) told: Option<String>,
    pub(super) warning: Option<String>,
}

/// Has tags stay in what comes by an interface. Where they can't, there is a warning: on a NIC whose packets are all user space's, and
/// else if it has VLANs. These features are switched off: those of [`TAGS`] that the port has not off by now.
pub(super) fn keep(interface: &Interface, of: &[&str], shares: bool) -> Kept {
    let mut kept = Kept::default();
    let name = &interface.name;
    // Features of virtual interfaces say what their kernel does with tags that come in packets, and these come beside them.
    let why = if interface.kind.is_none() {
        match switch_off(name, of, &mut kept) {
            Ok(left) if left.is_empty() => return kept,
            Ok(left) => format!("its driver can't leave {} out", left.join(", ")),
            Err(why) => why,
        }
    } else if interface.kind.as_deref() == Some("veth") {
        let peer = interface.peer.as_ref().map_or("PEER", |peer| &peer.name);
        format!(
            "the kernel of its other end keeps them there: `ethtool -K {peer} txvlan off` there puts them in"
        )
    } else {
        return kept;
    };
    let links = Route::open().and_then(|mut route| route.links()).unwrap_or_default();
    let vlan = vlan_on(interface, &links);
    let is_in_doubt = vlan.is_some() || (interface.kind.is_none() && !shares);
    kept.warning = is_in_doubt.then(|| warning(name, vlan, &why));
    kept
}

fn warning(name: &str, vlan: Option<&str>, why: &str) -> String {
    let vlan = vlan.map_or_else(String::new, |vlan| format!(", and there is {vlan}"));
    format!(
        "{name}: user space gets no VLAN tags that are beside packets, rules do not see them, and what comes back misses \
         them{vlan}: {why}"
    )
}

/// Switches off what takes tags off. Returns what stays on.
fn switch_off<'a>(name: &str, of: &[&str], kept: &mut Kept) -> Result<Vec<&'a str>, String> {
    let features =
        Ethtool::open().and_then(|ethtool| ethtool.features(name)).map_err(|error| error.to_string())?;
    let undos = &mut kept.undos;
    let off = have_off(&features, of, |feature| {
        state::set_feature(name, feature, false).map(|undo| undos.push(undo))
    });
    let off = off.map_err(|error| error.to_string())?;
    kept.told = (!off.is_empty()).then(|| told(name, &off));
    let stays = |feature: &&str| !off.contains(feature) && features.get(*feature).is_some_and(|it| it.on);
    Ok(TAGS.into_iter().filter(stays).collect())
}

/// A VLAN on top of an interface.
fn vlan_on<'a>(interface: &Interface, links: &'a [Link]) -> Option<&'a str> {
    let is_on = |link: &&Link| {
        link.kind.as_deref() == Some("vlan")
            && link.peer == Some(interface.index)
            && link.peer_namespace.is_none()
    };
    links.iter().find(is_on).map(|link| &*link.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_tags_off_is_asked_to_be_off_where_it_is_not_fixed_and_told_where_it_was_on() {
        let feature = |name: &str, on, changeable| (name.to_owned(), Feature { on, changeable });
        let features = |ctag, stag| {
            let [(on, may), (s_on, s_may)] = [ctag, stag];
            BTreeMap::from([
                feature("rx-vlan-hw-parse", on, may),
                feature("rx-vlan-stag-hw-parse", s_on, s_may),
                feature("rx-vlan-filter", true, true),
            ])
        };
        let mut asked = Vec::new();
        let mut off = |features: &BTreeMap<String, Feature>| {
            asked.clear();
            let was_on = have_off(features, &TAGS, |feature| {
                asked.push(feature);
                Ok::<_, ()>(())
            });
            (was_on.unwrap(), asked.clone())
        };
        let [ctag, stag] = TAGS;
        assert_eq!(off(&features((true, true), (true, true))), (TAGS.to_vec(), TAGS.to_vec()));
        assert_eq!(off(&features((true, true), (false, false))), (vec![ctag], vec![ctag]));
        assert_eq!(off(&features((true, false), (false, false))), (vec![], vec![]));
        assert_eq!(off(&BTreeMap::new()), (vec![], vec![]), "a driver without either");
        // By whoever switched it off: who did may be dead, and what he has left must not be undone meanwhile.
        assert_eq!(off(&features((false, true), (true, true))), (vec![stag], TAGS.to_vec()));
        assert_eq!(told("eth1", &TAGS), "off on eth1 meanwhile: rx-vlan-hw-parse, rx-vlan-stag-hw-parse");
    }

    #[test]
    fn a_vlan_on_an_interface_is_told_from_others() {
        let link = |name: &str, kind: &str, peer, peer_namespace| Link {
            name: name.into(),
            kind: Some(kind.into()),
            peer: Some(peer),
            peer_namespace,
            ..Link::default()
        };
        let interface = Interface { name: "eth1".into(), index: 4, ..Interface::default() };
        let others = [
            link("eth0.7", "vlan", 3, None),
            link("eth1.9", "vlan", 4, Some(1)),
            link("macvlan0", "macvlan", 4, None),
            Link { index: 4, name: "eth1".into(), ..Link::default() },
        ];
        assert_eq!(vlan_on(&interface, &others), None);
        let all = [&others[..], &[link("eth1.7", "vlan", 4, None)]].concat();
        assert_eq!(vlan_on(&interface, &all), Some("eth1.7"));
    }
}
