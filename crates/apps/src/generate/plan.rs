//! The packets, worked out once: what all of them have in common, and what is to be patched in each.
//!
//! A plan is data. The loop that generates follows it, and whatever else sends packets can.

use std::ops::Range;

use bywash_port::frame::FRAME_DATA;
use bywash_wire::checksum::Sum;
use bywash_wire::line::{FCS, MIN_FRAME};
use bywash_wire::{Mac, Protocol, PseudoHeader};

use super::field::Place;
use super::frame::{Frame, MOST_SOURCES};
use super::layers::{Layers, Transport, Version};
use super::payload::Payload;
use super::series::{Sequence, Series, mixed};
use super::size::{Mean, Sizes};
use super::turns::{Turns, period};
use super::values::{Order, Set, Values};
use crate::probe::PROBE;

/// Bytes in front that are written for each packet, as few of these as hold all that varies: what lies behind is in the
/// frames already. Fixed sizes are copied without a call.
pub(super) const HEADS: [usize; 4] = [64, 128, 256, FRAME_DATA];

/// The longest frame that is made, without FCS: nothing in IP is longer.
const LONGEST: usize = u16::MAX as usize;

/// What is sent.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// The longest packet and what would follow, with 0 where something varies and in the checksums that follow from it.
    pub(super) body: Box<[u8]>,
    /// One of [`HEADS`].
    pub(super) head: usize,
    /// The sizes.
    pub(super) variants: Box<[Variant]>,
    /// Which variant each packet is, in turn.
    pub(super) cycle: Box<[u16]>,
    /// What varies.
    pub(super) patches: Vec<Patch>,
    /// Where the lengths lie.
    pub(super) ip_length: Option<usize>,
    pub(super) udp_length: Option<usize>,
    /// Where IPv4's checksum lies, when it varies.
    pub(super) ip_checksum: Option<usize>,
    /// Where the checksum over the payload lies, when it varies.
    pub(super) checksum: Option<usize>,
    /// Over the payload: 0 would mean that there is none.
    pub(super) is_udp: bool,
    /// Where the probe lies.
    pub(super) probe: Option<usize>,
    /// After so many packets all patches begin anew.
    pub(super) flows: Option<u64>,
    /// The flows, where they take turns and probes say so.
    pub(super) turns: Option<Turns>,
    pub(super) mean: Mean,
}

/// What is different in packets of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Variant {
    /// Bytes of the packet, without FCS.
    pub(super) len: u16,
    pub(super) ip_length: u16,
    pub(super) udp_length: u16,
    /// The sums, not complemented, over what does not vary.
    pub(super) ip_sum: u16,
    pub(super) sum: u16,
    pub(super) filler_crc: u32,
}

/// Bits that vary, in a word of 2, 4 or 8 bytes that begins at an even offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Patch {
    /// Offset of the word.
    pub(super) at: usize,
    /// Bytes of the word.
    pub(super) width: usize,
    /// Bits of the word to the right of the field.
    pub(super) shift: u32,
    /// The field's bits, before they are shifted.
    pub(super) mask: u64,
    /// The word's other bits; `None` when an earlier patch has written some of them.
    pub(super) base: Option<u64>,
    /// IPv4's checksum covers it.
    pub(super) in_ip_sum: bool,
    /// The checksum over the payload covers it.
    pub(super) in_sum: bool,
    pub(super) series: Series,
}

impl Plan {
    /// The packets that `frame` describes, from `port_mac` when nothing says from whom.
    ///
    /// # Errors
    /// What is wrong and what would be right.
    pub(super) fn new(frame: &Frame, port_mac: Option<Mac>) -> Result<Self, String> {
        frame.check_headers()?;
        let port_mac = port_mac.unwrap_or(Mac([2, 0, 0, 0, 0, 1]));
        let packet = frame.template.clone().unwrap_or_else(|| frame.headers(port_mac));
        let layers = Layers::of(&packet);
        let (headers, own) = (&packet[..layers.payload], &packet[layers.payload..layers.end]);
        let lengths = lengths(frame, headers.len(), own.len())?;
        let has_probe = *frame.payload() == Payload::Probe;
        if headers.len() + if has_probe { PROBE } else { 0 } > FRAME_DATA {
            return Err(format!(
                "the template's headers and the probe must lie in its first {FRAME_DATA} bytes"
            ));
        }
        // Of what is not whole no length and no checksum could be right.
        if let (Some(cut), true) = (layers.cut, frame.template.is_some()) {
            return Err(format!(
                "the template's {cut} is not whole, or its length is wrong: give the whole packet"
            ));
        }

        // All of a first frame is copied from it, and words are read that end behind the last field.
        let longest = lengths.iter().map(|length| length.frame).max().unwrap_or_default();
        let mut body = vec![0; longest.max(FRAME_DATA) + size_of::<u64>()];
        body[..headers.len()].copy_from_slice(headers);
        frame.payload().write(own, &mut body[headers.len()..]);
        let probe = has_probe.then_some(headers.len());
        if let Some(at) = probe {
            body[at..at + PROBE].fill(0);
        }
        for at in [layers.ip_checksum(), layers.checksum()].into_iter().flatten() {
            body[at..at + 2].fill(0);
        }
        let shortest = lengths.iter().map(|length| headers.len() + length.payload).min().unwrap_or_default();
        let mut patches = Vec::new();
        if layers.unsummed.is_some()
            && (*frame.payload() != Payload::Template
                || lengths.iter().any(|length| length.payload != own.len()))
        {
            return Err(unsummed(&layers, "another --payload or --size than its own"));
        }
        for varied in varied(frame, &layers, &packet)? {
            varied.check(has_probe, headers.len(), shortest)?;
            if varied.place.is_unsummed(&layers) {
                return Err(unsummed(&layers, &varied.option));
            }
            varied.apply(frame, &layers, &mut body, &mut patches)?;
        }
        mark_shared_words(&body, &mut patches);

        let lens: Vec<u32> =
            lengths.iter().map(|length| u32::try_from(length.frame).unwrap_or(u32::MAX)).collect();
        let (variants, cycle) = variants(&lengths, &layers, &mut body, has_probe);
        let sizes_vary = variants.len() > 1;
        let mut plan = Self {
            head: 0,
            ip_checksum: layers.ip_checksum(),
            checksum: layers.checksum(),
            is_udp: layers.transport == Some(Transport::Udp),
            ip_length: layers.ip_length().filter(|_| sizes_vary),
            udp_length: layers.udp_length().filter(|_| sizes_vary),
            probe,
            flows: frame.flows,
            turns: probe.and_then(|_| Turns::of(&patches, &layers, frame.flows)),
            mean: Mean::of(&lens),
            body: body.into(),
            variants: variants.into(),
            cycle: cycle.into(),
            patches,
        };
        plan.write_constant_checksums();
        plan.head = plan.written_head(headers.len());
        Ok(plan)
    }

    /// Bytes of the longest packet, without FCS.
    pub(super) fn longest(&self) -> usize {
        self.variants.iter().map(|variant| usize::from(variant.len)).max().unwrap_or_default()
    }

    /// Bytes of each packet of the cycle of sizes, without FCS, from this one on.
    pub(super) fn lengths_from(&self, first: usize) -> Vec<u32> {
        let (before, after) = self.cycle.split_at(first.min(self.cycle.len()));
        let variants =
            after.iter().chain(before).filter_map(|variant| self.variants.get(usize::from(*variant)));
        variants.map(|variant| variant.len.into()).collect()
    }

    /// Frames of packet memory that the longest packet takes.
    pub(super) fn most_frames(&self) -> usize {
        self.longest().div_ceil(FRAME_DATA)
    }

    /// Checksums under which nothing varies are written now and never again.
    fn write_constant_checksums(&mut self) {
        let [first] = *self.variants else { return };
        if self.patches.iter().all(|patch| !patch.in_ip_sum)
            && let Some(at) = self.ip_checksum.take()
        {
            self.body[at..at + 2].copy_from_slice(&(!first.ip_sum).to_be_bytes());
        }
        if self.probe.is_none()
            && self.patches.iter().all(|patch| !patch.in_sum)
            && let Some(at) = self.checksum.take()
        {
            let checksum = if self.is_udp && first.sum == u16::MAX { u16::MAX } else { !first.sum };
            self.body[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        }
    }

    fn written_head(&self, headers: usize) -> usize {
        let probe = self.probe.map_or(0, |at| at + PROBE);
        let patched = self.patches.iter().map(|patch| patch.at + patch.width).max().unwrap_or_default();
        let needed = headers.max(probe).max(patched);
        HEADS.into_iter().find(|head| *head >= needed).unwrap_or(FRAME_DATA)
    }
}

impl Frame {
    fn check_headers(&self) -> Result<(), String> {
        if let Some(template) = &self.template {
            let len = template.len();
            if !(bywash_wire::ETHERNET_HEADER..=LONGEST).contains(&len) {
                let bytes = if len == 1 { "byte" } else { "bytes" };
                return Err(format!("the template has {len} {bytes}: 14 to {LONGEST} can be sent"));
            }
        } else {
            if *self.payload() == Payload::Template {
                return Err(
                    "--payload template: there is no template; name one by --template or --hex".into()
                );
            }
            if self.src_ip.is_ipv4() != self.dst_ip.is_ipv4() {
                return Err(format!(
                    "--src-ip {} and --dst-ip {} are of two versions of IP",
                    self.src_ip, self.dst_ip
                ));
            }
            if self.src_port == 0 || self.dst_port == 0 {
                return Err("port 0 can't be sent to or from (--src-port, --dst-port)".into());
            }
            if let Some(number) = self.vlans.iter().find(|number| **number > 4095) {
                return Err(format!("--vlan {number}: a VLAN's number is 0 to 4095"));
            }
            if let Some(label) = self.mpls.iter().find(|label| **label >= 1 << 20) {
                return Err(format!("--mpls {label}: a label is 0 to 1048575"));
            }
        }
        if !(1..=MOST_SOURCES).contains(&self.sources) {
            return Err(format!("--sources {}: it must be 1 to {MOST_SOURCES}", self.sources));
        }
        if self.flows == Some(0) {
            return Err("--flows 0: it must be 1 or more".into());
        }
        if matches!(self.payload(), Payload::Pattern(pattern) if pattern.is_empty()) {
            return Err("the payload's pattern is empty: give it a byte (--payload)".into());
        }
        Ok(())
    }
}

/// How long packets of one size are.
#[derive(Clone, Copy)]
struct Length {
    /// The frame, without FCS.
    frame: usize,
    /// What its headers say that they carry.
    payload: usize,
}

fn lengths(frame: &Frame, headers: usize, own: usize) -> Result<Vec<Length>, String> {
    let (shortest, fcs) = (MIN_FRAME as usize, FCS as usize);
    let payload = frame.payload();
    let needed = payload.shortest();
    let least = shortest.max(headers + needed);
    let length = |frame: usize| Length {
        frame,
        payload: if *payload == Payload::Nothing { 0 } else { frame - headers },
    };
    let sizes = match &frame.size {
        Sizes::Natural if *payload == Payload::Template => {
            let frame = shortest.max(headers + own);
            return if frame > LONGEST {
                Err(too_long(frame + fcs))
            } else {
                Ok(vec![Length { frame, payload: own }])
            };
        }
        Sizes::Natural => &vec![least + fcs],
        Sizes::Cycle(sizes) => sizes,
    };
    let check = |size: &usize| {
        if *size < least + fcs {
            let what = if least == shortest {
                "the shortest Ethernet frame has"
            } else if needed > 0 {
                "headers and the payload need"
            } else {
                "the headers need"
            };
            let or = if headers < least && least > shortest { ", or for another --payload" } else { "" };
            Err(format!("--size {size} (with FCS): {what} {0}; ask for {0} or more{or}", least + fcs))
        } else if *size > LONGEST + fcs {
            Err(too_long(*size))
        } else {
            Ok(length(size - fcs))
        }
    };
    sizes.iter().map(check).collect()
}

fn too_long(size: usize) -> String {
    format!("frames of at most {} bytes with FCS can be made, --size {size} is more", LONGEST + FCS as usize)
}

/// A place and its values.
struct Varied {
    place: Place,
    series: Vec<(Range<usize>, Series)>,
    option: String,
}

fn varied(frame: &Frame, layers: &Layers, packet: &[u8]) -> Result<Vec<Varied>, String> {
    let mut all = Vec::<Varied>::new();
    let mut state = frame.seed;
    if frame.sources > 1 {
        all.extend(sources(
            u64::from(frame.sources),
            layers,
            packet,
            &format!("--sources {}", frame.sources),
        )?);
    }
    for field in &frame.fields {
        let (place, values) = field.resolve(layers, frame.template.is_some())?;
        let seed = mixed(&mut state);
        let mut series = Vec::new();
        for part in place.parts() {
            let (shift, bits) = (place.bits.end - part.end, part.end - part.start);
            // The parts of a value in a list must be those of one value, so their order is one; those of a prefix must not
            // depend on each other.
            let is_list = matches!(values.set, Set::List(_));
            let (Ok(shift), Ok(bits)) = (u32::try_from(shift), u32::try_from(bits)) else { continue };
            let of_part = if is_list { values.clone() } else { own_seed(&values, shift) };
            let seed = if is_list { seed } else { seed ^ u64::from(shift) };
            let about = |reason| format!("{}: {reason}", field.option());
            series.push((part, Series::part(&of_part, (shift, bits), seed).map_err(about)?));
        }
        let overlaps = |other: &&Varied| other.place != place && other.place.overlaps(&place);
        if let Some(other) = all.iter().find(overlaps) {
            return Err(format!(
                "{} and {} change the same bits: leave one out",
                other.option,
                field.option()
            ));
        }
        // Who says something twice means the last.
        all.retain(|other| other.place != place);
        all.push(Varied { place, series, option: field.option().to_owned() });
    }
    if let Some(flows @ 2..) = frame.flows {
        if all.iter().all(Varied::is_constant) {
            let option = format!("--flows {flows}");
            if flows > u64::from(MOST_SOURCES) {
                return Err(format!(
                    "{option}: {MOST_SOURCES} sources are the most that are made without a field that varies; add \
                     --src-ip '10.0.0.0/8 random', say"
                ));
            }
            all.extend(sources(flows, layers, packet, &option)?);
        }
        let different = different(&all);
        if different < u128::from(flows) {
            return Err(format!(
                "--flows {flows}: the fields make only {different} different packets; give them more values"
            ));
        }
    }
    Ok(all)
}

/// How many packets it takes until all fields are back at their first values.
fn different(all: &[Varied]) -> u128 {
    period(all.iter().flat_map(|varied| &varied.series).map(|(_, series)| series))
}

/// Why something of a template can't be changed.
fn unsummed(layers: &Layers, what: &str) -> String {
    let subject = match layers.unsummed {
        Some((Protocol::ROUTING, _)) => "what stands behind the template's routing header".into(),
        unsummed => {
            format!(
                "the template's {}",
                unsummed.map(|(protocol, _)| protocol.to_string()).unwrap_or_default()
            )
        }
    };
    format!("{what}: {subject} has a checksum over it that is not worked out anew; leave it as it is")
}

fn own_seed(values: &Values, shift: u32) -> Values {
    let mut values = values.clone();
    if let Order::Random { seed: Some(seed) } = &mut values.order {
        *seed ^= u64::from(shift);
    }
    values
}

/// `count` values of the last two bytes of the source address, and of the source port.
fn sources(count: u64, layers: &Layers, packet: &[u8], option: &str) -> Result<Vec<Varied>, String> {
    let (at, len) = layers.addresses().ok_or_else(|| format!("{option}: the packet has no IP header"))?;
    let low = at + len - 2;
    let of = |at: usize, values: Sequence| {
        let place = Place { bits: at * 8..at * 8 + 16, is_raw: false };
        let series = Series { values, count, every: 1, shuffle: None };
        Varied { series: vec![(place.bits.clone(), series)], place, option: option.to_owned() }
    };
    let mut varied = vec![of(low, Sequence::Steps { first: read(packet, low, 2), step: 1 })];
    if matches!(layers.transport, Some(Transport::Udp | Transport::Tcp)) {
        let first = read(packet, layers.inside, 2);
        let ports = 65_536 - first;
        let values = if count <= ports {
            Sequence::Steps { first, step: 1 }
        } else {
            Sequence::List((0..count).map(|n| first + n % ports).collect())
        };
        varied.push(of(layers.inside, values));
    }
    Ok(varied)
}

impl Varied {
    fn is_constant(&self) -> bool {
        self.series.iter().all(|(_, series)| series.count == 1)
    }

    fn check(&self, has_probe: bool, payload: usize, shortest: usize) -> Result<(), String> {
        let bytes = self.place.bytes();
        if bytes.end > shortest {
            return Err(format!("{}: the shortest packet ends before byte {}", self.option, bytes.end));
        }
        if has_probe && bytes.end > payload {
            return Err(format!("{}: the probe lies there; choose another --payload", self.option));
        }
        Ok(())
    }

    /// Puts in what does not vary, and makes a patch of what does.
    fn apply(
        self,
        frame: &Frame,
        layers: &Layers,
        body: &mut [u8],
        patches: &mut Vec<Patch>,
    ) -> Result<(), String> {
        let (in_ip_sum, in_sum) = self.place.covered(layers);
        for (bits, series) in self.series {
            let at = bits.start / 16 * 2;
            let width = [2, 4, 8].into_iter().find(|width| (at + width) * 8 >= bits.end).unwrap_or(8);
            let shift = u32::try_from((at + width) * 8 - bits.end).unwrap_or_default();
            let mask = u64::MAX >> (64 - (bits.end - bits.start));
            if at + width > body.len() {
                return Err(format!("{}: it lies too far behind", self.option));
            }
            let kept = read(body, at, width) & !(mask << shift);
            let is_constant = series.count == 1 || frame.flows == Some(1);
            let value = if is_constant { (series.value(0) & mask) << shift } else { 0 };
            write(body, at, width, kept | value);
            if !is_constant && at + width > FRAME_DATA {
                return Err(format!(
                    "{}: what varies must lie in a packet's first {FRAME_DATA} bytes",
                    self.option
                ));
            }
            if !is_constant {
                patches.push(Patch { at, width, shift, mask, base: None, in_ip_sum, in_sum, series });
            }
        }
        Ok(())
    }
}

/// Finds out which patches have their words to themselves.
fn mark_shared_words(body: &[u8], patches: &mut [Patch]) {
    for i in 0..patches.len() {
        let (before, rest) = patches.split_at_mut(i);
        let Some(patch) = rest.first_mut() else { return };
        let is_first = before.iter().all(|b| b.at >= patch.at + patch.width || patch.at >= b.at + b.width);
        patch.base = is_first.then(|| read(body, patch.at, patch.width));
    }
}

/// The word of `width` bytes at `at`.
pub(super) fn read(bytes: &[u8], at: usize, width: usize) -> u64 {
    bytes[at..at + width].iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn write(bytes: &mut [u8], at: usize, width: usize, word: u64) {
    bytes[at..at + width].copy_from_slice(&word.to_be_bytes()[8 - width..]);
}

/// What is different in packets of each size, and which size each packet has. With one size, its lengths are written.
fn variants(
    lengths: &[Length],
    layers: &Layers,
    body: &mut [u8],
    has_probe: bool,
) -> (Vec<Variant>, Vec<u16>) {
    let (mut variants, mut cycle) = (Vec::<Variant>::new(), Vec::with_capacity(lengths.len()));
    for length in lengths {
        let len = word(length.frame);
        let known = variants.iter().position(|variant| variant.len == len);
        cycle.push(word(known.unwrap_or(variants.len())));
        if known.is_none() {
            variants.push(variant(*length, layers, body, has_probe));
        }
    }
    (variants, cycle)
}

fn variant(length: Length, layers: &Layers, body: &mut [u8], has_probe: bool) -> Variant {
    let end = layers.payload + length.payload;
    let ip_length = layers.ip.map_or(0, |(version, at)| match version {
        Version::V4 => word(end - at),
        Version::V6 => word(end - at - bywash_wire::IPV6_HEADER),
    });
    let udp_length = word(end - layers.inside);
    for (at, value) in [(layers.ip_length(), ip_length), (layers.udp_length(), udp_length)] {
        if let Some(at) = at {
            body[at..at + 2].copy_from_slice(&value.to_be_bytes());
        }
    }
    let ip_sum = match layers.ip {
        Some((Version::V4, at)) => Sum::new().bytes(&body[at..layers.inside]).partial(),
        _ => 0,
    };
    let filler = layers.payload + PROBE..end;
    let filler_crc = if has_probe { crc32fast::hash(&body[filler]) } else { 0 };
    let carried = &body[layers.inside..end];
    let start = match layers.summed.zip(layers.addresses()) {
        Some(((protocol, summed), (at, len))) if summed.pseudo == PseudoHeader::Always => {
            let (source, destination) = body[at..at + 2 * len].split_at(len);
            Sum::pseudo(source, destination, protocol.0, u32::from(word(carried.len())))
        }
        _ => Sum::new(),
    };
    let sum = start.bytes(carried).partial();
    Variant { len: word(length.frame), ip_length, udp_length, ip_sum, sum, filler_crc }
}

/// No packet is longer than [`LONGEST`].
fn word(n: usize) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}
