//! Rules at TCX ingress, for interfaces where XDP has the kernel copy packets that pass: on a veth native XDP does, and
//! everywhere what runs in the kernel's stack in its place.
//!
//! The program decides alone. There is no socket, no way back, nothing in the NIC: only the program, its maps, and a queue that
//! shows that somebody is there. Other programs at TCX come behind it and see what it passes. When nobody has said that the rules
//! shall be there, new ones that can't be there move all of them to XDP (`moving.rs`).

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use bywash_filter::{Expression, Hook};
use bywash_frame::{Arena, Batch, Pool};
use bywash_port::{
    Capabilities, PortName, QueueChoice, QueueCounters, QueuePair, Rule, Rules, RxQueue, TxQueue,
};
use bywash_sys::bpf::{Link, TcxDirection};
use bywash_sys::interface::{Finding, Interface, Severity, Topic};
use bywash_sys::xsk::CopyMode;

use super::guard::Guard;
use super::look::{find, no_native_xdp, no_sockets};
use super::moving::Way;
use super::program::{Beat, Maps};
use super::rules::{Place, Ruled, Scope};
use super::samples::{Names, Ring};
use super::steered::Steered;
use super::watch::Watch;
use super::{Attach, Options, XdpPort};

/// The one heartbeat.
const QUEUE: u32 = 0;

/// Looks whether rules are to be decided at TCX of this interface; nothing where they are not.
///
/// # Errors
/// Why not, when it is asked for.
pub(super) fn look(
    interface: &str,
    choice: QueueChoice,
    options: &Options,
) -> Result<Option<Interface>, String> {
    if options.hook == Some(Hook::Xdp) || (options.rules.is_none() && options.hook.is_none()) {
        return Ok(None);
    }
    let is_asked_for = options.hook.is_some();
    match obstacle(interface, choice, options) {
        Some(why) if is_asked_for => return Err(why),
        Some(_) => return Ok(None),
        None => {}
    }
    let interface = find(interface)?;
    Ok((is_asked_for || copies(&interface)).then_some(interface))
}

/// Whether XDP has each packet copied that passes, as far as is known.
fn copies(interface: &Interface) -> bool {
    interface.kind.as_deref() == Some("veth") || no_native_xdp(&interface.advice).is_some()
}

/// Why a program at TCX can't do what is asked for.
fn obstacle(interface: &str, choice: QueueChoice, options: &Options) -> Option<String> {
    let Some(rules) = &options.rules else { return Some("--attach tcx is for rules".into()) };
    if let Some(queue) = choice.queue {
        return Some(format!(
            "a program at TCX sees the packets of all queues, not those of queue {queue}: name {interface} alone, or \
             --attach xdp"
        ));
    }
    let own = Options::default();
    let set = [
        (options.max_queues.is_some(), "--queues"),
        (options.ring_size != own.ring_size, "--ring"),
        (options.ntuple.is_some(), "--ntuple"),
        (options.rules_in_nic.is_some(), "--rules-in-nic"),
        (options.copy != CopyMode::Auto, "--zero-copy"),
        (options.attach != Attach::Auto, "--xdp"),
        (options.busy_poll.is_some(), "--busy-poll"),
    ];
    if let Some((_, flag)) = set.into_iter().find(|(is_set, _)| *is_set) {
        return Some(format!("{flag} is for XDP: leave it out, or --attach xdp"));
    }
    let as_on_the_wire = options.hook.is_none();
    Place { hook: Hook::Tcx, interface: 0, mtu: 0, as_on_the_wire, no_sockets: None }
        .refusal(rules, options.only.as_ref())
}

impl Place {
    /// On an interface.
    pub(super) fn new(hook: Hook, interface: &Interface) -> Self {
        let no_sockets = no_sockets(&interface.advice).map(str::to_owned);
        Self { hook, interface: interface.index, mtu: interface.mtu, as_on_the_wire: false, no_sockets }
    }

    /// Why a program there can't decide by these rules.
    pub(super) fn unfit(&self, rules: &Rules, only: Option<&Expression>) -> Option<String> {
        if self.hook == Hook::Xdp {
            let why = self.no_sockets.as_ref()?;
            let Rule { name, .. } = rules.set.rules().iter().find(|rule| rule.asks_user_space())?;
            return Some(format!("the rule '{name}' is for user space, and {why}"));
        }
        let needs_xdp = |rule: &Rule| {
            let why = rule.needs_xdp()?;
            let Rule { name, .. } = rule;
            Some(format!("the rule '{name}' {why}, and a program at TCX decides alone"))
        };
        if let Some(why) = rules.set.rules().iter().find_map(needs_xdp) {
            return Some(why);
        }
        let of_rules = rules.set.rules().iter().filter_map(|rule| rule.condition.expression.as_ref());
        let mut all = of_rules.chain(&rules.never).chain(only);
        let asks = all.find(|expression| self.as_on_the_wire && expression.asks_length())?;
        Some(format!(
            "'{asks}' asks how long packets are, and at TCX those that the kernel has joined (GRO, GSO) are as long as all of \
             them"
        ))
    }

    /// The same, and what to do.
    pub(super) fn refusal(&self, rules: &Rules, only: Option<&Expression>) -> Option<String> {
        self.unfit(rules, only).map(|why| match self.hook {
            Hook::Xdp => why,
            Hook::Tcx => format!("{why}: start with --attach xdp"),
        })
    }
}

/// Attaches the program of the rules.
///
/// # Errors
/// What is wrong, why, and what to do. Nothing was changed then.
pub(super) fn open(
    name: &PortName,
    interface: Interface,
    options: &Options,
    arena: &'static Arena,
) -> Result<XdpPort, String> {
    refuse(&interface.advice)?;
    let rules = options.rules.as_ref().ok_or("--attach tcx is for rules")?;
    let mut warnings = Vec::new();
    let guard = Guard::open(interface.index, &mut warnings)?;
    let maps = Maps::create(Hook::Tcx, QUEUE + 1, true).map_err(|error| error.to_string())?;
    let maps = maps.with_samples(options.samples).map_err(|error| error.to_string())?;
    let place = Place { as_on_the_wire: options.hook.is_none(), ..Place::new(Hook::Tcx, &interface) };
    let scope = Scope::Filter(options.only.clone());
    let (ruled, program) = Ruled::load(&maps, rules, scope, guard.never_take(), place)?;
    let (maps, names) = (Arc::new(maps), Names::default());
    names.add(ruled.numbered());
    let samples = Ring::of(&maps, &names).map_err(|error| error.to_string())?;
    let steered = Arc::new(Mutex::new(Steered::nothing(&interface)));
    let watch = Arc::new(Watch::open(&interface, None, None, &steered)?);
    let beat = maps.beat(QUEUE).map_err(|error| error.to_string())?;
    let link = Link::tcx_first(&program, interface.index, TcxDirection::Ingress)
        .map_err(|error| format!("{error}; it needs Linux 6.6 with CONFIG_NET_XGRESS"))?;
    let queue = QueuePair { rx: Some(Box::new(Heart { beat: Some(beat) })), tx: Some(Box::new(NoWayBack)) };
    let way = Way { name: name.clone(), options: options.clone(), arena };
    Ok(XdpPort {
        name: name.clone(),
        hook: Hook::Tcx,
        mac: interface.mac.map(|mac| mac.0),
        capabilities: Capabilities {
            mode: vec![Hook::Tcx.name()],
            link_mbps: interface.speed_mbps,
            ..Capabilities::default()
        },
        warnings,
        queues: vec![queue],
        lives: Vec::new(),
        maps: Some(maps),
        samples,
        names,
        ruled: Some(Arc::new(ruled)),
        steering: None,
        guard: Some(guard),
        link: Some(Arc::new(link)),
        way: options.hook.is_none().then_some(way),
        leaving: None,
        back: None,
        _others: None,
        watch,
        spread: None,
        deferral: None,
        steered,
        arena,
    })
}

/// What is known to be in the way: what is in XDP's alone is not.
fn refuse(advice: &[Finding]) -> Result<(), String> {
    let concerns = |finding: &&Finding| {
        finding.severity == Severity::Error && matches!(finding.topic, Topic::Interface | Topic::Rights)
    };
    advice.iter().find(concerns).map_or(Ok(()), |obstacle| Err(obstacle.text.clone()))
}

/// The receiving half, by which nothing comes: each call shows the program that somebody is there.
struct Heart {
    /// Until nobody is there any more.
    beat: Option<Beat>,
}

impl RxQueue for Heart {
    fn rx(&mut self, _: &mut Pool, _: &mut Batch) -> usize {
        self.beat.iter_mut().for_each(Beat::beat);
        0
    }

    fn arm(&mut self) -> bool {
        // No worker sleeps for longer than a heartbeat may take.
        true
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn show_life(&mut self, shows: bool) {
        self.beat.iter_mut().for_each(|beat| beat.go_on(shows));
    }

    fn stop(&mut self) {
        self.beat.take().iter().for_each(Beat::stop);
    }

    fn counters(&self) -> QueueCounters {
        QueueCounters::default()
    }

    fn close(mut self: Box<Self>, _: &mut Pool) {
        self.stop();
    }
}

/// The sending half: nothing has come that could go back.
struct NoWayBack;

impl TxQueue for NoWayBack {
    fn tx(&mut self, _: &mut Pool, _: &mut Batch) -> usize {
        0
    }

    fn flush(&mut self, _: &mut Pool) {}

    fn in_flight(&self) -> usize {
        0
    }

    fn counters(&self) -> QueueCounters {
        QueueCounters::default()
    }

    fn close(self: Box<Self>, _: &mut Pool) {}
}

#[cfg(test)]
mod tests {
    use bywash_filter::rules::{Action, Condition, FlowOptions};
    use bywash_port::RuleSet;
    use bywash_sys::netdev::XdpFeatures;

    use super::*;

    #[test]
    fn packets_are_copied_for_xdp_on_a_veth_and_where_the_driver_has_none() {
        let finding = |severity| Finding { severity, topic: Topic::NativeXdp, text: String::new() };
        let native = Some(XdpFeatures { native: true, ..XdpFeatures::default() });
        let nic = Interface { xdp_features: native, ..Interface::default() };
        assert!(!copies(&nic));
        assert!(!copies(&Interface { advice: vec![finding(Severity::Note)], ..nic.clone() }));
        assert!(copies(&Interface { advice: vec![finding(Severity::Warning)], ..nic.clone() }));
        assert!(copies(&Interface { kind: Some("veth".into()), ..nic.clone() }));
        assert!(!copies(&Interface { kind: Some("tun".into()), ..nic }));
    }

    #[test]
    fn where_sockets_get_nothing_xdp_takes_the_rules_that_it_decides_alone() {
        let rules = |action| {
            let rule = Rule {
                name: "flood".into(),
                condition: Condition::default(),
                action,
                sample: None,
                expires: None,
                dry_run: false,
            };
            let set = Arc::new(RuleSet::new(vec![rule]).unwrap());
            Rules { set, never: Vec::new(), flows: FlowOptions::default() }
        };
        let text = "open the ports (xdp:eth1)".to_owned();
        let advice = vec![Finding { severity: Severity::Error, topic: Topic::Sockets, text: text.clone() }];
        let bond = Interface { advice, ..Interface::default() };
        let refusal = |bond: &Interface, action| Place::new(Hook::Xdp, bond).refusal(&rules(action), None);
        assert_eq!(refusal(&bond, Action::Drop), None);
        let why = format!("the rule 'flood' is for user space, and {text}");
        assert_eq!(refusal(&bond, Action::Queue), Some(why));
        assert_eq!(refusal(&Interface::default(), Action::Queue), None);
    }

    #[test]
    fn what_hinders_xdp_alone_does_not_hinder_this() {
        let finding = |severity, topic| Finding { severity, topic, text: format!("{topic:?}") };
        let [program, packets] =
            [Topic::Program, Topic::Packets].map(|topic| finding(Severity::Error, topic));
        assert_eq!(refuse(&[program.clone(), packets, finding(Severity::Warning, Topic::Rights)]), Ok(()));
        for topic in [Topic::Interface, Topic::Rights] {
            let why = refuse(&[program.clone(), finding(Severity::Error, topic)]);
            assert_eq!(why, Err(format!("{topic:?}")));
        }
    }
}
