//! Where the headers are by now, and what the link layer says of a packet.

use bywash_wire::{EtherType, Mac, Protocol};

use super::Wrong;
use super::address::directed;
use crate::formula::{Comparison, Formula, Load, Operator, Size, Test, Value};
use crate::language::{Direction, Llc};
use crate::walk::{Family, Outer, Part, Pushed, Start, UDP_HEADER, Walk, sum};

/// Types that stand in an LLC header or, for some, in the Ethernet header. Those up to 255 are service access points.
pub(super) const SAP_STP: u16 = 0x42;
pub(super) const SAP_IPX: u16 = 0xe0;
pub(super) const SAP_NETBEUI: u16 = 0xf0;
pub(super) const SAP_ISO: u16 = 0xfe;
pub(super) const DECNET: u16 = 0x6003;
pub(super) const APPLETALK: u16 = 0x809b;
pub(super) const AARP: u16 = 0x80f3;
const IPX: u16 = 0x8137;

/// The longest length an 802.3 header can give; greater numbers are types.
const LONGEST_802_3: u32 = 1500;

/// How the layer below says what it carries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Naming {
    /// By an EtherType, or a length with LLC behind it.
    Ethernet,
    /// By a PPP protocol number.
    Ppp,
    /// Not at all: behind an MPLS label only the IP version tells.
    Mpls,
}

/// Where things are in the packet.
#[derive(Clone)]
pub(super) struct Link {
    naming: Naming,
    /// Where the innermost link-layer header begins.
    header: u32,
    /// Where the number stands that names the payload.
    named_at: u32,
    /// Where the payload of the innermost link layer begins, labels included.
    payload: u32,
    /// Bytes of MPLS labels at its start.
    labels: u32,
    /// Bytes of LLC at its start, in packets of ISO protocols.
    llc: u32,
    /// What pushes all of the above further.
    pushed: Pushed,
}

impl Link {
    pub(super) fn ethernet() -> Self {
        Self {
            naming: Naming::Ethernet,
            header: 0,
            named_at: 12,
            payload: 14,
            labels: 0,
            llc: 3,
            pushed: Pushed::Nothing,
        }
    }

    /// Bytes of the innermost link-layer header.
    pub(super) fn header(&self, offset: u32, size: Size) -> Value {
        Value::Load(Box::new(Load { index: self.header_pushed(), offset: self.header_at() + offset, size }))
    }

    pub(super) fn header_at(&self) -> u32 {
        self.header
    }

    /// By how much the innermost link-layer header is pushed; `None` where it begins the packet.
    pub(super) fn header_pushed(&self) -> Option<Value> {
        self.geneve_part(if self.naming == Naming::Ppp { Part::Payload } else { Part::Header })
    }

    /// Whether there is an Ethernet header, where that is not sure.
    fn has_header(&self) -> Result<Formula, Wrong> {
        match (self.header_pushed(), self.pushed()) {
            _ if self.header > 0 => {
                Err(Wrong::new("no Ethernet addresses stand behind PPPoE").cure("put this before 'pppoes'"))
            }
            (Some(left), Some(right)) => {
                Ok(Formula::Test(Test { left, comparison: Comparison::Equal, right }).not())
            }
            _ => Ok(Formula::Constant(true)),
        }
    }

    fn geneve_part(&self, part: Part) -> Option<Value> {
        match self.pushed {
            Pushed::Geneve(outer) => Some(Value::Walk(Walk::Geneve { outer, part })),
            Pushed::Nothing | Pushed::Tags { .. } => None,
        }
    }

    /// Bytes at an offset, or further where something is pushed before it.
    fn load(&self, offset: u32, size: Size) -> Value {
        Value::Load(Box::new(Load { index: self.pushed(), offset, size }))
    }

    /// By how much the payload is pushed; `None` where that is known to be nothing.
    pub(super) fn pushed(&self) -> Option<Value> {
        self.pushed.walk().map(Value::Walk)
    }

    /// Where the IP header begins, for walks.
    pub(super) fn start(&self, family: Family) -> Start {
        Start { family, network: self.network_at(), pushed: self.pushed }
    }

    /// Where the network header begins.
    pub(super) fn network_at(&self) -> u32 {
        self.payload + self.labels
    }

    /// Bytes of the network header.
    pub(super) fn network(&self, offset: u32, size: Size) -> Value {
        self.load(self.network_at() + offset, size)
    }

    /// Bytes behind an IPv4 header with its options.
    pub(super) fn behind_ipv4(&self, offset: u32, size: Size) -> Value {
        let index = Some(sum(self.pushed(), self.ipv4_header_length()));
        Value::Load(Box::new(Load { index, offset: self.network_at() + offset, size }))
    }

    pub(super) fn ipv4_header_length(&self) -> Value {
        Value::HeaderLength(Box::new(Load {
            index: self.pushed(),
            offset: self.network_at(),
            size: Size::Byte,
        }))
    }

    /// Packets whose type is this. A number up to 1500 names an LLC service access point.
    pub(super) fn carries(&self, kind: EtherType) -> Result<Formula, Wrong> {
        match self.naming {
            Naming::Ethernet => Ok(self.ethernet_carries(kind.0)),
            Naming::Ppp => Ok(self.named(Size::Half).is(u32::from(ppp_number(kind.0)))),
            Naming::Mpls => self.mpls_carries(kind),
        }
    }

    fn named(&self, size: Size) -> Value {
        // A PPP header stands in the payload of the Ethernet frame; an EtherType before it.
        let part = if self.naming == Naming::Ppp { Part::Payload } else { Part::Named };
        let index = self.geneve_part(part).or_else(|| self.pushed());
        Value::Load(Box::new(Load { index, offset: self.named_at, size }))
    }

    /// An 802.3 frame with a length, so with LLC behind it.
    fn has_length(&self) -> Formula {
        self.named(Size::Half).test(Comparison::Greater, LONGEST_802_3).not()
    }

    fn after_link(&self, offset: u32, size: Size) -> Value {
        self.load(self.payload + offset, size)
    }

    fn ethernet_carries(&self, kind: u16) -> Formula {
        let sap = |kind: u16| u32::from(kind) << 8 | u32::from(kind);
        match kind {
            SAP_ISO | SAP_NETBEUI => {
                Formula::all([self.has_length(), self.after_link(0, Size::Half).is(sap(kind))])
            }
            SAP_IPX => Formula::any([
                self.named(Size::Half).is(u32::from(IPX)),
                Formula::all([
                    self.has_length(),
                    Formula::any([
                        self.snap(0x00_0000, IPX),
                        self.after_link(0, Size::Byte).is(u32::from(SAP_IPX)),
                        self.after_link(0, Size::Half).is(0xffff),
                    ]),
                ]),
            ]),
            APPLETALK => self.typed_or_snap(0x08_0007, kind),
            AARP => self.typed_or_snap(0x00_0000, kind),
            _ if u32::from(kind) <= LONGEST_802_3 => {
                Formula::all([self.has_length(), self.after_link(0, Size::Byte).is(u32::from(kind))])
            }
            _ => self.named(Size::Half).is(u32::from(kind)),
        }
    }

    fn typed_or_snap(&self, organisation: u32, kind: u16) -> Formula {
        Formula::any([
            self.named(Size::Half).is(u32::from(kind)),
            Formula::all([self.has_length(), self.snap(organisation, kind)]),
        ])
    }

    /// A SNAP header: the access points 0xaa, unnumbered information, the organisation, its protocol.
    fn snap(&self, organisation: u32, kind: u16) -> Formula {
        Formula::all([
            self.after_link(4, Size::Word).is((organisation & 0xffff) << 16 | u32::from(kind)),
            self.after_link(0, Size::Word).is(0xaaaa_0300 | organisation >> 16),
        ])
    }

    /// Behind the last label only the version in the first half byte tells what follows.
    fn mpls_carries(&self, kind: EtherType) -> Result<Formula, Wrong> {
        let version = match kind {
            EtherType::IPV4 => 0x40,
            EtherType::IPV6 => 0x60,
            _ => {
                return Err(Wrong::new("behind 'mpls' only IPv4 and IPv6 can be told apart")
                    .cure("put it before 'mpls'"));
            }
        };
        Ok(Formula::all([
            self.label_bottom().is(1),
            self.network(0, Size::Byte).masked(0xf0, Size::Byte).is(version),
        ]))
    }

    /// The bottom-of-stack bit of the last label so far.
    fn label_bottom(&self) -> Value {
        self.load(self.network_at() - 4 + 2, Size::Byte).masked(0x01, Size::Byte)
    }

    pub(super) fn vlan(&mut self, id: Option<u32>) -> Result<Formula, Wrong> {
        match self.naming {
            Naming::Ethernet => {}
            Naming::Ppp => {
                return Err(
                    Wrong::new("no VLAN tag can stand behind PPPoE").cure("put 'vlan' before 'pppoes'")
                );
            }
            Naming::Mpls => {
                return Err(Wrong::new("no VLAN tag can stand behind MPLS").cure("put 'vlan' before 'mpls'"));
            }
        }
        let mut tagged = Formula::any(
            [EtherType::VLAN, EtherType::VLAN_SERVICE, EtherType::VLAN_OLD_OUTER]
                .map(|kind| self.named(Size::Half).is(u32::from(kind.0))),
        );
        if let Some(id) = id {
            tagged = Formula::all([tagged, self.after_link(0, Size::Half).masked(0x0fff, Size::Half).is(id)]);
        }
        self.named_at += 4;
        self.payload += 4;
        Ok(tagged)
    }

    /// From here on everything is looked for behind any number of tags.
    pub(super) fn any_vlan(&mut self) -> Result<Formula, Wrong> {
        if self.naming != Naming::Ethernet {
            return Err(Wrong::new("no VLAN tag can stand behind MPLS or PPPoE").cure("put 'anyvlan' first"));
        }
        let named_at = match self.pushed {
            Pushed::Nothing => self.named_at,
            Pushed::Tags { named_at } => named_at,
            Pushed::Geneve(_) => {
                return Err(Wrong::new("'anyvlan' can't stand behind 'geneve'").cure("put it before"));
            }
        };
        self.pushed = Pushed::Tags { named_at };
        // Always so, in a packet with a type.
        Ok(Value::Walk(Walk::Tags { named_at }).test(Comparison::GreaterOrEqual, 0))
    }

    pub(super) fn mpls(&mut self, label: Option<u32>) -> Result<Formula, Wrong> {
        let mut labelled = match self.naming {
            Naming::Mpls => self.label_bottom().is(0),
            Naming::Ethernet => self.named(Size::Half).is(u32::from(EtherType::MPLS.0)),
            Naming::Ppp => self.named(Size::Half).is(u32::from(PPP_MPLS)),
        };
        if let Some(label) = label {
            let number = self.network(0, Size::Word).masked(0xffff_f000, Size::Word);
            labelled = Formula::all([labelled, number.is(label << 12)]);
        }
        self.labels += 4;
        self.naming = Naming::Mpls;
        Ok(labelled)
    }

    pub(super) fn pppoe_session(&mut self, session: Option<u32>) -> Result<Formula, Wrong> {
        let mut in_session = self.carries(EtherType::PPPOE_SESSION)?;
        if let Some(session) = session {
            let number = self.network(0, Size::Word).masked(0xffff, Size::Word);
            in_session = Formula::all([in_session, number.is(session)]);
        }
        self.naming = Naming::Ppp;
        self.named_at = self.network_at() + 6;
        self.header = self.named_at;
        self.payload = self.named_at + 2;
        self.labels = 0;
        self.llc = 0;
        Ok(in_session)
    }

    /// A UDP packet with a Geneve header behind it; from here on everything is looked for in what that carries.
    pub(super) fn geneve(&mut self, vni: Option<u32>) -> Result<Formula, Wrong> {
        let tags_at = match self.pushed {
            Pushed::Nothing => None,
            Pushed::Tags { named_at } => Some(named_at),
            Pushed::Geneve(_) => return Err(Wrong::new("'geneve' can't stand behind 'geneve'")),
        };
        let in_udp = |udp: &dyn Fn(u32, Size) -> Value| {
            let header = |offset, size| udp(UDP_HEADER + offset, size);
            let mut parts = vec![
                udp(2, Size::Half).is(GENEVE_PORT),
                header(0, Size::Byte).masked(GENEVE_VERSION, Size::Byte).is(0),
            ];
            if let Some(vni) = vni {
                parts.push(header(4, Size::Word).masked(0xffff_ff00, Size::Word).is(vni << 8));
            }
            Formula::all(parts)
        };
        let udp = u32::from(Protocol::UDP.0);
        let v4 = Formula::all([
            self.carries(EtherType::IPV4)?,
            self.network(9, Size::Byte).is(udp),
            self.first_fragment(),
            in_udp(&|offset, size| self.behind_ipv4(offset, size)),
        ]);
        let v6 = Formula::all([
            self.carries(EtherType::IPV6)?,
            self.network(6, Size::Byte).is(udp),
            in_udp(&|offset, size| self.network(40 + offset, size)),
        ]);
        let (named_at, named_size, named_mask, named_v4) = match self.naming {
            Naming::Ethernet => (self.named_at, Size::Half, 0xffff, u32::from(EtherType::IPV4.0)),
            Naming::Ppp => (self.named_at, Size::Half, 0xffff, u32::from(ppp_number(EtherType::IPV4.0))),
            Naming::Mpls => (self.network_at(), Size::Byte, 0xf0, 0x40),
        };
        let outer = Outer { named_at, named_size, named_mask, named_v4, network: self.network_at(), tags_at };
        *self = Self {
            naming: Naming::Ethernet,
            header: 0,
            named_at: 0,
            payload: 0,
            labels: 0,
            llc: 3,
            pushed: Pushed::Geneve(outer),
        };
        // The header that everything behind is found by must be there whole.
        let header = Value::Walk(Walk::Geneve { outer, part: Part::Header });
        Ok(Formula::all([Formula::any([v4, v6]), header.test(Comparison::GreaterOrEqual, 0)]))
    }

    /// An IPv4 packet that is whole or the first fragment of one.
    pub(super) fn first_fragment(&self) -> Formula {
        self.network(6, Size::Half).test(Comparison::CommonBit, 0x1fff).not()
    }

    pub(super) fn llc(&self, kind: Llc) -> Result<Formula, Wrong> {
        if self.naming == Naming::Ppp {
            return Err(Wrong::new("no LLC header stands behind PPPoE").cure("put 'llc' before 'pppoes'"));
        }
        // Both access points 0xff are old IPX without LLC.
        let llc = Formula::all([self.has_length(), self.after_link(0, Size::Half).is(0xffff).not()]);
        let control = |mask| self.after_link(2, Size::Byte).masked(mask, Size::Byte);
        Ok(match kind {
            Llc::Any => llc,
            Llc::I => {
                Formula::all([llc, self.after_link(2, Size::Byte).test(Comparison::CommonBit, 0x01).not()])
            }
            Llc::S(None) => Formula::all([llc, control(0x03).is(0x01)]),
            Llc::S(Some(field)) => Formula::all([llc, control(0x0f).is(field)]),
            Llc::U(None) => Formula::all([llc, control(0x03).is(0x03)]),
            Llc::U(Some(field)) => Formula::all([llc, control(0xef).is(field)]),
        })
    }

    /// Bytes of an ISO network header.
    pub(super) fn behind_llc(&self, offset: u32) -> Value {
        self.load(self.network_at() + self.llc + offset, Size::Byte)
    }

    /// Frames from, to, or both from and to this station.
    pub(super) fn station(&self, direction: Option<Direction>, mac: Mac) -> Result<Formula, Wrong> {
        let station = directed(direction, || self.mac(6, mac), || self.mac(0, mac));
        Ok(Formula::all([self.has_header()?, station]))
    }

    /// Frames for a group of stations.
    pub(super) fn to_group(&self) -> Result<Formula, Wrong> {
        let group = self.header(0, Size::Byte).test(Comparison::CommonBit, 1);
        Ok(Formula::all([self.has_header()?, group]))
    }

    fn mac(&self, offset: u32, mac: Mac) -> Formula {
        let [a, b, c, d, e, f] = mac.0;
        Formula::all([
            self.header(offset + 2, Size::Word).is(u32::from_be_bytes([c, d, e, f])),
            self.header(offset, Size::Half).is(u32::from(u16::from_be_bytes([a, b]))),
        ])
    }
}

const GENEVE_PORT: u32 = 6081;
/// The bits of a Geneve header's first byte that say its version, which is 0.
const GENEVE_VERSION: u32 = 0xc0;

const PPP_MPLS: u16 = 0x0281;

/// The PPP protocol number of an EtherType or service access point; itself where PPP has none.
fn ppp_number(kind: u16) -> u16 {
    match EtherType(kind) {
        EtherType::IPV4 => 0x0021,
        EtherType::IPV6 => 0x0057,
        EtherType(DECNET) => 0x0027,
        EtherType(APPLETALK) => 0x0029,
        EtherType(SAP_ISO) => 0x0023,
        EtherType(SAP_STP) => 0x0031,
        EtherType(SAP_IPX) => 0x002b,
        _ => kind,
    }
}

/// `left op right`, for the callers that build arithmetic by hand.
pub(super) fn binary(operator: Operator, left: Value, right: Value) -> Value {
    Value::Binary(operator, Box::new(left), Box::new(right))
}
