//! What can be opened of an interface: which queues, and packets of one frame or of several.

use bywash_frame::{FRAME_DATA, Stride};
use bywash_port::{PortName, QueueChoice, Rules};
use bywash_sys::interface::{self, Finding, Interface, Severity, Topic};
use bywash_sys::netdev::Netdev;
use bywash_sys::route::Route;

use super::{Attach, Options, tx};
use crate::OpenOptions;

/// How much longer a packet may be than the MTU, bytes.
pub(super) const HEADERS: usize = interface::HEADERS as usize;

/// Highest MTU whose packets fit one frame, bytes.
pub(super) const MAX_SINGLE_MTU: usize = FRAME_DATA - HEADERS;

/// Bytes of the longest packet of several frames.
pub(super) const LONGEST: usize = tx::MAX_FRAMES * FRAME_DATA;

/// Which halves of a queue to open.
#[derive(Clone, Copy)]
pub(super) struct Halves {
    pub(super) queue: u32,
    pub(super) rx: bool,
    pub(super) tx: bool,
}

/// What is known of an interface before it is opened.
pub(super) fn find(interface: &str) -> Result<Interface, String> {
    let frame = u32::try_from(FRAME_DATA).unwrap_or(u32::MAX);
    interface::preflight(interface, frame).map_err(|error| error.to_string())
}

/// What is known to be in the way of opening it so, or what works badly. `takes` when packets are taken from it, which
/// needs an XDP program; `by_sockets` when that is to give some to sockets. Whether native XDP works is not judged here: the kernel is asked, which knows better.
pub(super) fn judge(advice: &[Finding], takes: bool, by_sockets: bool) -> Result<Vec<String>, String> {
    let concerns = |finding: &&Finding| match finding.topic {
        Topic::Interface | Topic::Path => true,
        Topic::Rights | Topic::Program | Topic::Packets => takes,
        Topic::Sockets => takes && by_sockets,
        Topic::NativeXdp => false,
    };
    let of = |severity| advice.iter().filter(concerns).filter(move |finding| finding.severity == severity);
    match of(Severity::Error).next() {
        Some(obstacle) => Err(obstacle.text.clone()),
        None => Ok(of(Severity::Warning).map(|finding| finding.text.clone()).collect()),
    }
}

/// Why native XDP is refused, and what to do, if that is known.
pub(super) fn no_native_xdp(advice: &[Finding]) -> Option<&str> {
    let is_it =
        |finding: &&Finding| finding.topic == Topic::NativeXdp && finding.severity == Severity::Warning;
    advice.iter().find(is_it).map(|finding| finding.text.as_str())
}

/// Whether packets are to come to sockets by native XDP: all that are taken, or, where there are rules, what these leave to user space.
pub(super) fn wants_sockets(options: &Options) -> bool {
    let by_rules = |rules: &Rules| rules.set.rules().iter().any(|rule| rule.asks_user_space());
    options.attach != Attach::Generic && options.rules.as_ref().is_none_or(by_rules)
}

/// Why sockets get no packets of an interface, and what to do, if that is known.
pub(super) fn no_sockets(advice: &[Finding]) -> Option<&str> {
    advice.iter().find(|finding| finding.topic == Topic::Sockets).map(|finding| finding.text.as_str())
}

/// Why there can be no zero-copy with frames so far apart, where the driver has it or does not say.
///
/// Packed frames lie across the borders of 4 KiB pages, and the kernel maps page by page: only where the NIC's addresses of two
/// pages happen to follow each other are packets across their border sent and received, others are lost.
pub(super) fn no_zero_copy(interface: &Interface, stride: Stride) -> Option<&'static str> {
    let may_have = interface.xdp_features.is_none_or(|features| features.zero_copy);
    (stride == Stride::Packed && may_have).then_some(
        "zero-copy wants each packet within a page of 4 KiB: --frame-stride 4096, which does with an MTU of 2026 at most",
    )
}

/// How far apart frames should lie for these ports: within pages of 4 KiB where an interface's driver then need not copy, and
/// none has too long packets for that.
pub fn stride_for<'a>(names: impl IntoIterator<Item = &'a PortName>) -> Stride {
    let known = names.into_iter().filter_map(|name| match name {
        PortName::Xdp { interface, .. } => {
            let link = Route::open().ok()?.link(interface).ok()??;
            let features = Netdev::open().ok()?.features(link.index).ok()?;
            Some((features.zero_copy, link.mtu as usize <= MAX_SINGLE_MTU))
        }
        _ => None,
    });
    let known: Vec<(bool, bool)> = known.collect();
    let (wanted, possible) = (known.iter().any(|(wants, _)| *wants), known.iter().all(|(_, fits)| *fits));
    if wanted && possible { Stride::Aligned } else { Stride::Packed }
}

/// Bytes of packet memory for the rings of a port, and as much again for what is on its way; 0 where nobody knows.
pub fn memory_for(name: &PortName, options: &OpenOptions, stride: Stride) -> usize {
    let PortName::Xdp { interface, queues } = name else { return 0 };
    let Ok(Interface { queues: there, .. }) = find(interface) else { return 0 };
    let most = if queues.queue.is_some() { 1 } else { options.queues.map_or(u32::MAX, u32::from) };
    let Options { ring_size, .. } = Options::from(options);
    let packets = u64::from(there.rx.max(there.tx).min(most)) * u64::from(ring_size) * 2;
    usize::try_from(packets).unwrap_or(usize::MAX).saturating_mul(stride.bytes())
}

/// Which queues to open. A sending half exists only where the interface sends: on others the kernel would take packets
/// and lose them without a word.
pub(super) fn choose(
    choice: QueueChoice,
    options: &Options,
    tx: bool,
    (rx_queues, tx_queues): (u32, u32),
    interface: &str,
) -> Result<Vec<Halves>, String> {
    let count = rx_queues.max(tx_queues);
    let range = match choice.queue.map(u32::from) {
        Some(queue) if queue >= count => {
            let there = match count {
                0 | 1 => "its only queue is 0".into(),
                _ => format!("its queues are 0 to {}", count - 1),
            };
            return Err(format!("{interface} has no queue {queue}: {there}"));
        }
        Some(queue) if options.max_queues.is_some() => {
            return Err(format!("queue {queue} alone is named: leave --queues out, or the queue"));
        }
        Some(queue) => queue..queue + 1,
        None => 0..count.min(options.max_queues.map_or(u32::MAX, u32::from)),
    };
    let queues: Vec<_> = range
        .map(|queue| Halves { queue, rx: options.rx && queue < rx_queues, tx: tx && queue < tx_queues })
        .filter(|halves| halves.rx || halves.tx)
        .collect();
    if queues.is_empty() {
        return Err(format!(
            "{interface} has no queue for what is wanted: {rx_queues} receive, {tx_queues} send"
        ));
    }
    if let Some(wanted) = options.max_queues.filter(|&wanted| queues.len() < usize::from(wanted)) {
        return Err(format!(
            "{interface} has only {} of {wanted} queues for this: lower --queues, or leave it out",
            queues.len()
        ));
    }
    refuse_unused(options, queues.iter().any(|halves| halves.rx))?;
    Ok(queues)
}

/// What is for receiving only is an error where nothing is received.
fn refuse_unused(options: &Options, receives: bool) -> Result<(), String> {
    let set = [(options.only.is_some(), "--only"), (options.attach != Attach::Auto, "--xdp")];
    match set.into_iter().find(|(is_set, _)| *is_set) {
        Some((_, flag)) if !receives => {
            Err(format!("{flag} is for receiving, and nothing is received: leave it out"))
        }
        _ => Ok(()),
    }
}

/// Whether packets may have several frames.
pub(super) fn multi_buffer(link: &Interface, options: &Options, stride: Stride) -> Result<bool, String> {
    let (interface, mtu) = (&link.name, link.mtu as usize);
    let needed = mtu > MAX_SINGLE_MTU;
    let cure =
        format!("set it to {MAX_SINGLE_MTU} or less (`ip link set dev {interface} mtu {MAX_SINGLE_MTU}`)");
    match (options.multi_buffer.unwrap_or(needed), stride) {
        (false, _) if needed => Err(format!(
            "the MTU of {interface} is {mtu} and a frame holds one of {MAX_SINGLE_MTU}: {cure}, or allow packets of several frames"
        )),
        (true, Stride::Aligned) => Err(format!(
            "packets of several frames need packed frames, not 4096 bytes apart; the MTU of {interface} is {mtu}: {cure}, \
             or leave --frame-stride out"
        )),
        (multi_buffer, _) => Ok(multi_buffer),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bywash_filter::rules::FlowOptions;
    use bywash_port::{Action, Rule, RuleSet, read_steer};
    use bywash_sys::netdev::XdpFeatures;

    use super::*;

    fn chosen(
        choice: QueueChoice,
        options: &Options,
        counts: (u32, u32),
    ) -> Result<Vec<(u32, bool, bool)>, String> {
        let queues = choose(choice, options, options.tx && !choice.rx_only, counts, "eth1")?;
        Ok(queues.into_iter().map(|halves| (halves.queue, halves.rx, halves.tx)).collect())
    }

    #[test]
    fn a_half_is_opened_only_where_the_interface_has_one() {
        let (all, options) = (QueueChoice::default(), Options::default());
        assert_eq!(chosen(all, &options, (1, 2)).unwrap(), [(0, true, true), (1, false, true)]);
        assert_eq!(chosen(all, &options, (2, 1)).unwrap(), [(0, true, true), (1, true, false)]);
        let send = Options { rx: false, ..options.clone() };
        assert_eq!(chosen(all, &send, (4, 1)).unwrap(), [(0, false, true)]);
        let two = Options { max_queues: Some(2), ..options };
        assert_eq!(chosen(all, &two, (4, 4)).unwrap(), [(0, true, true), (1, true, true)]);
    }

    #[test]
    fn a_chosen_queue_is_opened_alone() {
        let options = Options::default();
        let one = |queue, rx_only| QueueChoice { queue: Some(queue), rx_only };
        assert_eq!(chosen(one(3, false), &options, (4, 4)).unwrap(), [(3, true, true)]);
        assert_eq!(chosen(one(3, true), &options, (4, 4)).unwrap(), [(3, true, false)]);
        assert!(chosen(one(4, false), &options, (4, 4)).unwrap_err().contains("0 to 3"));
        assert!(chosen(one(3, true), &options, (1, 4)).unwrap_err().contains("1 receive, 4 send"));
    }

    #[test]
    fn no_option_is_ignored() {
        let refused = |queue, options: Options| {
            chosen(QueueChoice { queue, rx_only: false }, &options, (4, 4)).unwrap_err()
        };
        let count = |max_queues| Options { max_queues: Some(max_queues), ..Options::default() };
        assert!(refused(Some(3), count(2)).contains("leave --queues out"));
        assert!(refused(None, count(8)).contains("eth1 has only 4 of 8 queues"));
        let send = Options { rx: false, ..Options::default() };
        let only = Options { only: Some("ip".parse().unwrap()), ..send.clone() };
        assert!(refused(None, only).starts_with("--only is for receiving"));
        assert!(
            refused(None, Options { attach: Attach::Native, ..send }).starts_with("--xdp is for receiving")
        );
    }

    #[test]
    fn obstacles_refuse_and_what_is_bad_is_told_where_it_matters() {
        let finding = |severity, topic| Finding { severity, topic, text: format!("{topic:?}") };
        let all = |severity| {
            [Topic::Path, Topic::Rights, Topic::Program, Topic::Packets, Topic::Sockets, Topic::NativeXdp]
                .map(|topic| finding(severity, topic))
        };
        assert_eq!(judge(&[], true, true).unwrap(), [""; 0]);
        assert_eq!(judge(&all(Severity::Note), true, true).unwrap(), [""; 0]);
        assert_eq!(
            judge(&all(Severity::Warning), true, true).unwrap(),
            ["Path", "Rights", "Program", "Packets", "Sockets"]
        );
        assert_eq!(judge(&all(Severity::Error)[1..], true, true).unwrap_err(), "Rights");
        assert_eq!(judge(&all(Severity::Error)[2..], true, true).unwrap_err(), "Program");
        assert_eq!(judge(&all(Severity::Error)[3..], true, true).unwrap_err(), "Packets");
        assert_eq!(judge(&all(Severity::Error)[4..], true, true).unwrap_err(), "Sockets");
        assert_eq!(
            judge(&all(Severity::Error)[4..], true, false).unwrap(),
            [""; 0],
            "the program decides alone"
        );
        assert_eq!(
            judge(&all(Severity::Error)[1..], false, true).unwrap(),
            [""; 0],
            "sending needs none of them"
        );
        assert_eq!(
            judge(&[finding(Severity::Error, Topic::Interface)], false, true).unwrap_err(),
            "Interface"
        );
        assert_eq!(no_native_xdp(&all(Severity::Warning)), Some("NativeXdp"));
        assert_eq!(no_native_xdp(&all(Severity::Note)), None);
    }

    #[test]
    fn sockets_are_wanted_unless_rules_leave_nothing_to_user_space() {
        let ruled = |action| {
            let rule = Rule { action, ..read_steer("udp port 53 drop").unwrap() };
            let set = RuleSet::new(vec![rule]).unwrap();
            let rules = Rules { set: Arc::new(set), never: Vec::new(), flows: FlowOptions::default() };
            Options { rules: Some(rules), ..Options::default() }
        };
        assert!(wants_sockets(&Options::default()));
        assert!(wants_sockets(&ruled(Action::Queue)));
        assert!(!wants_sockets(&ruled(Action::Drop)));
        assert!(!wants_sockets(&Options { attach: Attach::Generic, ..Options::default() }));
    }

    #[test]
    fn packed_frames_are_copied_unless_the_driver_copies_anyway() {
        let with = |zero_copy| {
            let xdp_features = Some(XdpFeatures { zero_copy, ..XdpFeatures::default() });
            Interface { xdp_features, ..Interface::default() }
        };
        let refused = no_zero_copy(&with(true), Stride::Packed).unwrap();
        assert!(
            refused.contains("--frame-stride 4096") && refused.contains(&MAX_SINGLE_MTU.to_string()),
            "{refused}"
        );
        assert_eq!(no_zero_copy(&Interface::default(), Stride::Packed), Some(refused), "it does not say");
        assert_eq!(no_zero_copy(&with(true), Stride::Aligned), None);
        assert_eq!(no_zero_copy(&with(false), Stride::Packed), None);
    }

    #[test]
    fn chains_are_used_when_the_mtu_wants_them() {
        let link = |mtu| Interface { name: "eth1".into(), mtu, ..Interface::default() };
        let with = |mtu, wish, stride| {
            multi_buffer(&link(mtu), &Options { multi_buffer: wish, ..Options::default() }, stride)
        };
        assert_eq!(with(1500, None, Stride::Packed), Ok(false));
        assert_eq!(with(2026, None, Stride::Packed), Ok(false));
        assert_eq!(with(2027, None, Stride::Packed), Ok(true));
        assert_eq!(with(1500, Some(true), Stride::Packed), Ok(true));
        assert!(with(2027, Some(false), Stride::Packed).unwrap_err().contains("mtu 2026"));
        assert!(with(9000, None, Stride::Aligned).unwrap_err().contains("packed"));
    }
}
