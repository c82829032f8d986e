//! Cables: veth pairs between hosts, and rows of hosts.

use bywash_sys::route::{Mac, Prefix, Route, Veth, VethEnd};

use crate::{Host, LabError};

/// What a pair is like.
#[derive(Clone, Debug)]
pub struct PairOptions {
    /// Receive and transmit queues of either end.
    pub queues: u32,
    /// The MTU of either end, bytes.
    pub mtu: u32,
    /// Super-segments and unfilled checksums may cross, as a veth has it by default. Off, packets are as on a wire.
    pub offloads: bool,
    /// The names of the near and the far end.
    pub names: [String; 2],
    /// Their Ethernet addresses.
    pub macs: [Mac; 2],
    /// Their IP addresses, none or several.
    pub addresses: [Vec<Prefix>; 2],
    /// Each end knows the other's Ethernet address and never asks for it.
    pub neighbours: bool,
}

impl Default for PairOptions {
    /// `right` and `left`, 10.0.0.1/24 and 10.0.0.2/24, one queue, an MTU of 1500, no offloads, neighbours known.
    fn default() -> Self {
        Self::of_row(0)
    }
}

impl PairOptions {
    /// The default for the cable number `cable` of a row.
    fn of_row(cable: u8) -> Self {
        let end = |host| ([10, 0, cable, host], Mac([2, 0, 0, 0, cable, host]));
        let ((near, near_mac), (far, far_mac)) = (end(1), end(2));
        let prefix = |address: [u8; 4]| vec![Prefix { address: address.into(), length: 24 }];
        Self {
            queues: 1,
            mtu: 1500,
            offloads: false,
            names: ["right".into(), "left".into()],
            macs: [near_mac, far_mac],
            addresses: [prefix(near), prefix(far)],
            neighbours: true,
        }
    }
}

impl PairOptions {
    /// Both ends, without an index yet.
    pub(crate) fn ends(&self) -> [End; 2] {
        [0, 1].map(|side| End {
            name: self.names[side].clone(),
            index: 0,
            mac: self.macs[side],
            addresses: self.addresses[side].clone(),
        })
    }
}

/// One end of a pair.
#[derive(Clone, Debug)]
pub struct End {
    /// Its name in its host.
    pub name: String,
    /// Its index in its host.
    pub index: u32,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Its IP addresses.
    pub addresses: Vec<Prefix>,
}

/// A cable between two hosts. It is removed when dropped.
#[derive(Debug)]
pub struct Pair {
    /// One end.
    pub near: End,
    /// The other.
    pub far: End,
    /// In the near end's host.
    route: Route,
}

impl Pair {
    /// Lays a cable from one host to another, or back to the same one. Both ends are up and have a link.
    ///
    /// # Errors
    /// When a name or an address is taken, or the kernel refuses otherwise; nothing is left then.
    pub fn between(near: &Host, far: &Host, options: &PairOptions) -> Result<Self, LabError> {
        let route = near.enter(Route::open)??;
        let [near_end, far_end] = options.ends();
        near.route().create_veth(&Veth {
            near: VethEnd { name: &options.names[0], mac: Some(options.macs[0]), namespace: None },
            far: VethEnd {
                name: &options.names[1],
                mac: Some(options.macs[1]),
                namespace: Some(far.namespace().fd()),
            },
            queues: options.queues,
            mtu: options.mtu,
        })?;
        let mut pair = Self { near: near_end, far: far_end, route };
        pair.near.index = near.link(&pair.near.name)?.index; // from here on, dropping the pair removes it
        pair.far.index = far.link(&pair.far.name)?.index;
        for (host, this, other) in [(near, &pair.near, &pair.far), (far, &pair.far, &pair.near)] {
            if !options.offloads {
                host.set_offloads(&this.name, false)?;
            }
            set_up(host, this, other, options.neighbours)?;
        }
        near.wait_until_running(&pair.near.name)?;
        far.wait_until_running(&pair.far.name)?;
        Ok(pair)
    }
}

/// Sets an interface up and gives it its addresses and neighbours.
pub(crate) fn set_up(host: &Host, this: &End, other: &End, neighbours: bool) -> Result<(), LabError> {
    host.route().set_up(this.index, true)?;
    for &prefix in &this.addresses {
        host.add_address(this.index, prefix)?;
    }
    for prefix in other.addresses.iter().filter(|_| neighbours) {
        host.route().add_neighbour(this.index, prefix.address, other.mac)?;
    }
    Ok(())
}

impl Drop for Pair {
    fn drop(&mut self) {
        // When it is gone already, by its other end or its host's end, there is nothing to do.
        self.route.delete_link(self.near.index).ok();
    }
}

/// A row of hosts, each with a cable to the next: `right` on the one and `left` on the other.
#[derive(Debug)]
pub struct Lab {
    /// The cables, from the first host on. Cable 0 has 10.0.0.1 and 10.0.0.2, cable 1 has 10.0.1.1 and 10.0.1.2.
    pub pairs: Vec<Pair>,
    /// The hosts.
    pub hosts: Vec<Host>,
}

impl Lab {
    /// Makes a row of at most 250 hosts. Of the options count the queues, the MTU, the offloads and the neighbours;
    /// names and addresses are the row's own.
    ///
    /// # Errors
    /// Without root, or when the kernel refuses.
    pub fn row(hosts: u8, options: &PairOptions) -> Result<Self, LabError> {
        let hosts: Vec<Host> = (0..hosts.min(250)).map(|_| Host::new()).collect::<Result<_, _>>()?;
        let pairs = (0..)
            .zip(hosts.windows(2))
            .map(|(cable, pair)| {
                let row = PairOptions::of_row(cable);
                let options =
                    PairOptions { names: row.names, macs: row.macs, addresses: row.addresses, ..*options };
                Pair::between(&pair[0], &pair[1], &options)
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { pairs, hosts })
    }
}
