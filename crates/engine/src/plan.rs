//! Who gets what: interfaces for ports, engines for queues, and the rings between all threads.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};

use bywash_port::{Port, QueuePair};
use bywash_stack::frame::{Arena, Batch};
use bywash_stack::wire::Mac;
use bywash_stack::{Control, Interface, Medium, Offloads, PortId, Stack, Timestamp};
use bywash_sys::interface::HEADERS;
use bywash_sys::random;

use crate::clock::Clock;
use crate::control::{ControlTask, Engine as EngineEnd};
use crate::engine::{Engine, HANDOFF, Handed, MESSAGES, Parts, Queues};
use crate::figures::Shared;
use crate::handoff::{Bell, Newest, Receiver, Sender, ring};
use crate::instance::{Configure, Handle, Options, StartError};
use crate::links::{Began, Links};
use crate::ports::Ports;
use crate::program::Program;
use crate::steer::Steering;

/// Frames that the control thread makes ARP, neighbour discovery and ICMP of.
const CONTROL_FRAMES: usize = 256;

/// All that is to be made into threads.
pub(crate) struct Plan {
    pub(crate) engines: Vec<Engine>,
    pub(crate) control: ControlTask,
    pub(crate) handle: Handle,
}

/// Takes the queues of the ports and deals them out.
///
/// # Errors
/// [`StartError`], with the queues closed again.
pub(crate) fn make(
    ports: &Arc<Ports>,
    arena: &'static Arena,
    options: &Options,
    configure: Box<Configure<'_>>,
    program: &mut dyn FnMut(usize, usize) -> Box<dyn Program>,
) -> Result<Plan, StartError> {
    let open = &mut *ports.lock();
    let queues: Vec<Vec<QueuePair>> = open.iter_mut().map(|port| port.queues()).collect();
    let most = queues.iter().map(Vec::len).max().unwrap_or(1).max(1);
    let count = if options.cores.is_empty() { most } else { options.cores.len() };
    let made = check(open, &queues).and_then(|()| {
        let steering = steering(open, &queues, count)?;
        threads(open, steering, arena, options, configure, program)
    });
    match made {
        Ok(mut plan) => {
            plan.handle.ports = Arc::downgrade(ports);
            deal(&mut plan, queues);
            Ok(plan)
        }
        Err(error) => {
            let mut pool = arena.pool(0)?;
            for QueuePair { rx, tx } in queues.into_iter().flatten() {
                tx.into_iter().for_each(|tx| tx.close(&mut pool));
                rx.into_iter().for_each(|rx| rx.close(&mut pool));
            }
            Err(error)
        }
    }
}

fn check(ports: &[Box<dyn Port>], queues: &[Vec<QueuePair>]) -> Result<(), StartError> {
    let both = |pairs: &Vec<QueuePair>| {
        pairs.iter().any(|pair| pair.rx.is_some()) && pairs.iter().any(|pair| pair.tx.is_some())
    };
    match ports.iter().zip(queues).find(|(_, pairs)| !both(pairs)) {
        Some((port, _)) => Err(StartError::OneWay(port.name().to_string())),
        None => Ok(()),
    }
}

/// How flows are spread over so many engines: as the ports' NICs do it, if each has a queue for each engine and all do it alike.
fn steering(
    ports: &[Box<dyn Port>],
    queues: &[Vec<QueuePair>],
    count: usize,
) -> Result<Steering, StartError> {
    let fits = |pairs: &Vec<QueuePair>| pairs.len() == count && pairs.iter().all(|pair| pair.rx.is_some());
    if count > 1 && queues.iter().all(fits) {
        let mut spreads = ports.iter().map(|port| port.spread());
        if let Some(Some(first)) = spreads.next()
            && spreads.all(|other| other.as_ref() == Some(&first))
            && let Some(steering) = Steering::by_nic(first, count)
        {
            return Ok(steering);
        }
    }
    Ok(Steering::by_software(random::bytes()?, count))
}

/// Engines without queues, and the control, with everything between them.
fn threads(
    ports: &[Box<dyn Port>],
    steering: Steering,
    arena: &'static Arena,
    options: &Options,
    configure: Box<Configure<'_>>,
    program: &mut dyn FnMut(usize, usize) -> Box<dyn Program>,
) -> Result<Plan, StartError> {
    let (count, steering) = (steering.engines(), Arc::new(steering));
    let clock = Clock::start();
    let mut pool = arena.pool(CONTROL_FRAMES)?;
    let mut control = Control::new(random::bytes()?);
    let (mut interfaces, mut kernels) = (Vec::with_capacity(ports.len()), Vec::new());
    let macs = ports.iter().map(|port| mac(&**port)).collect::<Result<Vec<_>, _>>()?;
    let untagged: Vec<(usize, Option<u16>)> = (0..ports.len()).map(|port| (port, None)).collect();
    let wanted = if options.interfaces.is_empty() { &untagged } else { &options.interfaces };
    for (number, vlan) in wanted {
        let (Some(port), Some(mac), Ok(id)) = (ports.get(*number), macs.get(*number), u16::try_from(*number))
        else {
            continue;
        };
        let interface = interface(&**port, PortId(id), (*mac, *vlan));
        let mtu = interface.mtu;
        let id = control.add_interface(interface)?;
        interfaces.push(id);
        let began = Began { interface: id, mtu, kernels_mac: port.mac().is_some() };
        kernels.extend(port.name().interface().map(|name| (name, began)));
    }
    let links =
        if kernels.is_empty() { None } else { Some(Links::of(&kernels, Timestamp::ZERO, &mut control)?) };
    control.set_forwarding(options.forward);
    control.set_redirects(options.redirects);
    configure(&mut control, Timestamp::ZERO, &interfaces)?;
    let programs: Vec<Box<dyn Program>> = (0..count).map(|number| program(number, count)).collect();
    for listen in programs.first().map_or_else(Vec::new, |program| program.listens()) {
        let place = listen.local.map_or_else(String::new, |local| format!("{local} "));
        let refused = |error| StartError::Listen(format!("{place}port {}", listen.port), error);
        control.listen(listen).map_err(refused)?;
    }
    let snapshot = control.snapshot(&mut pool).clone();
    let unfinished = Arc::new(AtomicUsize::new(count));
    let (ending, leaving) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let bell = Bell::new()?;
    let bells: Vec<Bell> = (0..count).map(|_| Bell::new()).collect::<Result<_, _>>()?;
    let figures: Vec<Arc<Shared>> = (0..count).map(|_| Arc::new(Shared::new(ports.len()))).collect();
    let (commands, orders) = channel();
    let share = arena.unused() / count;
    let mut rings = mesh(&bells);
    let (mut engines, mut ends) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for (number, program) in programs.into_iter().enumerate() {
        let (messages, from_control) = ring(MESSAGES, &bells[number]);
        let (to_control, asked) = ring(MESSAGES, &bell);
        let picture = Newest::new();
        let newest = picture.other_end();
        ends.push(EngineEnd { asked, messages, picture, answers: Vec::new(), unsaid: VecDeque::new() });
        let (to_engines, from_engines) = std::mem::take(&mut rings[number]);
        let mut stack = Stack::new(snapshot.clone(), random::bytes()?);
        stack.set_limits(options.limits);
        stack.set_stacks(number, count);
        engines.push(Engine::new(Parts {
            number,
            batch: options.batch,
            clock,
            stack,
            pool: arena.pool(share)?,
            ports: Vec::new(),
            steering: steering.clone(),
            bell: bells[number].clone(),
            from_control,
            picture: newest,
            to_control,
            to_engines,
            from_engines,
            program,
            unfinished: unfinished.clone(),
            ending: ending.clone(),
            leaving: leaving.clone(),
            figures: figures[number].clone(),
        }));
    }
    let control = ControlTask {
        clock,
        control,
        pool,
        engines: ends,
        ports: Vec::new(),
        commands: orders,
        links,
        looked: Timestamp::ZERO,
        bell: bell.clone(),
        published: snapshot,
        old: Vec::new(),
        begun: false,
        batch: Batch::new(),
        armed: false,
    };
    let names = Arc::new(ports.iter().map(|port| port.name().to_string()).collect());
    let spread_by_nic = steering.is_by_nic();
    let handle = Handle { commands, bell, unfinished, figures, names, ports: Weak::new(), spread_by_nic };
    Ok(Plan { engines, control, handle })
}

/// One engine's ends of the rings: where it puts things, by engine, and where it takes them.
type Ends = (Vec<Option<Sender<Handed>>>, Vec<Receiver<Handed>>);

/// A ring from each engine to each other one.
fn mesh(bells: &[Bell]) -> Vec<Ends> {
    let mut ends: Vec<Ends> = bells.iter().map(|_| (Vec::new(), Vec::new())).collect();
    for from in 0..bells.len() {
        for (to, bell) in bells.iter().enumerate() {
            let (sender, receiver) = ring(HANDOFF, bell);
            ends[from].0.push((from != to).then_some(sender));
            if from != to {
                ends[to].1.push(receiver);
            }
        }
    }
    ends
}

/// Gives each queue to an engine. With more engines than queues, those without one send by the engine that has it.
fn deal(plan: &mut Plan, queues: Vec<Vec<QueuePair>>) {
    let count = plan.engines.len();
    for (pairs, id) in queues.into_iter().zip(0..) {
        let port = PortId(id);
        let first = pairs.iter().position(|pair| pair.tx.is_some()).unwrap_or_default() % count;
        let mut parts: Vec<Queues> = (0..count).map(|_| Queues::new(port)).collect();
        for (number, QueuePair { rx, tx }) in pairs.into_iter().enumerate() {
            let part = &mut parts[number % count];
            part.rx.extend(rx);
            part.tx.extend(tx);
        }
        for number in (0..count).filter(|number| *number != first) {
            if parts[number].tx.is_empty() {
                let (sender, receiver) = ring(HANDOFF, plan.engines[first].bell());
                parts[number].sender = Some(sender);
                parts[first].others.push(receiver);
            }
        }
        for (engine, part) in plan.engines.iter_mut().zip(parts) {
            engine.add_port(part);
        }
        plan.control.ports.push((port, first));
    }
}

/// The port's Ethernet address, or one that is made up.
fn mac(port: &dyn Port) -> Result<Mac, std::io::Error> {
    Ok(match port.mac() {
        Some(mac) => Mac(mac),
        None => {
            let [a, b, c, d, e, ..] = random::bytes()?;
            // Locally administered, and one station's (IEEE 802).
            Mac([2, a, b, c, d, e])
        }
    })
}

/// What a port, or a VLAN of it, is to the stack.
fn interface(port: &dyn Port, id: PortId, (mac, vlan): (Mac, Option<u16>)) -> Interface {
    let capabilities = port.capabilities();
    let mtu = capabilities.max_len.saturating_sub(HEADERS as usize);
    let name = port.name().to_string();
    let name = name.split_once(':').map(|(_, rest)| rest).filter(|rest| !rest.is_empty()).unwrap_or(&name);
    Interface {
        name: vlan.map_or_else(|| name.into(), |vlan| format!("{name}.{vlan}")),
        port: id,
        medium: Medium::Ethernet { mac, vlan },
        mtu: u16::try_from(mtu).unwrap_or(u16::MAX),
        offloads: Offloads { checksum: capabilities.tx_checksum, segmentation: capabilities.segmentation },
    }
}
