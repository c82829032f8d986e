//! Established flows of a port: the table, and the TCX program on the way out of its interface that fills it.
//!
//! The table lives on when rules change and the new ones ask for it as well; its program is made anew, and is there before
//! the XDP program that asks. For a moment there are two, which note the same.

use std::fmt::Display;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use bywash_filter::Hook;
use bywash_filter::rules::{
    Flow, FlowCount, FlowLayout, FlowMap, FlowOptions, FlowTable, RuleSet, SentFlows, note_program,
};
use bywash_port::Counter;
use bywash_sys::bpf::{Link, LoadError, Map, MapKind, MapSpec, OUR_PROGRAM, Program, TcxDirection};
use bywash_sys::random;
use bywash_sys::shared::Mapping;

use super::program::{self, Maps};
use super::verify::NotVerified;

/// What is known of flows, and what notes them.
pub(super) struct Flows {
    table: Arc<Table>,
    /// Detaches when nobody has it any more.
    link: Arc<Link>,
}

/// The table, as this process has it.
pub(super) struct Table {
    map: Map,
    memory: Arc<Mapping>,
    layout: FlowLayout,
}

impl SentFlows for Table {
    fn last_sent(&self, flow: &Flow) -> Option<u32> {
        // Programs write there at any time: a flow that is a mixture is nobody's.
        self.layout.find(flow, |at, bytes| self.memory.copy_out_hostile(at, bytes))
    }
}

impl Table {
    /// Makes an empty table.
    pub(super) fn create(most: usize) -> Result<Self, String> {
        let random = random::bytes().map_err(|error| format!("no random numbers: {error}"))?;
        let secret = [0, 8].map(|at| random[at..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word)));
        let layout = FlowLayout::new(most, secret);
        let value_size = u32::try_from(layout.bytes()).unwrap_or(u32::MAX);
        let kind = MapKind::Array;
        let spec =
            MapSpec { kind, name: "bywash_flows", key_size: 4, value_size, entries: 1, mappable: true };
        let map = Map::create(&spec).map_err(|error| error.to_string())?;
        let memory = map.map_memory().map_err(|error| error.to_string())?;
        Ok(Self { map, memory, layout })
    }

    /// Takes over what another one knows and this one does not. A program may write here meanwhile.
    fn take_over(&self, before: &Self) -> io::Result<()> {
        let mut table = FlowTable::from_bytes(self.layout, &self.bytes());
        for noted in table.take_over(&before.bytes()) {
            self.memory.publish(noted.head_at, &[], 0)?;
            self.memory.copy_in(noted.flow_at, &noted.flow);
            self.memory.publish(noted.head_at, &[], noted.head)?;
        }
        Ok(())
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.layout.bytes()];
        self.memory.copy_out_hostile(0, &mut bytes);
        bytes
    }

    /// How programs reach it.
    pub(super) fn reached(&self) -> FlowMap {
        FlowMap { table: self.map.as_raw_fd(), layout: self.layout }
    }
}

impl Flows {
    /// Notes what leaves `interface`, when a rule asks for it; what was known before stays known.
    pub(super) fn open(
        set: &RuleSet,
        options: &FlowOptions,
        interface: u32,
        maps: &Maps,
        before: Option<&Self>,
    ) -> Result<Option<Self>, String> {
        let Some(idle) = set.longest_idle() else { return Ok(None) };
        let before = before.map(|before| &before.table);
        let bytes = FlowLayout::new(options.most, [0; 2]).bytes();
        let table = match before {
            Some(table) if table.layout.bytes() == bytes => Arc::clone(table),
            _ => Arc::new(Table::create(options.most)?),
        };
        let program = load_notes(table.reached(), options, maps, idle).map_err(|error| error.to_string())?;
        // Before others': one that decides that a packet leaves (`TC_ACT_OK`) ends the row, and nothing would be noted behind it.
        let link = Link::tcx_first(&program, interface, TcxDirection::Egress).map_err(|error| {
            format!("{error}; rules with established need Linux 6.6 with CONFIG_NET_XGRESS")
        })?;
        // Only now: what left while the program was loaded is in the other table alone.
        if let Some(before) = before.filter(|before| !Arc::ptr_eq(before, &table)) {
            table.take_over(before).map_err(|error| format!("established flows: {error}"))?;
        }
        Ok(Some(Self { table, link: Arc::new(link) }))
    }

    /// For the XDP program.
    pub(super) fn map(&self) -> FlowMap {
        self.table.reached()
    }

    /// The place of what notes them.
    pub(super) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// For who asks from this process.
    pub(super) fn sent(&self) -> Arc<dyn SentFlows> {
        Arc::clone(&self.table) as _
    }

    /// What the program has counted.
    pub(super) fn counters(maps: &Maps) -> impl Iterator<Item = Counter> {
        let counted = |count: FlowCount| maps.counted(count as u32)[0];
        FlowCount::ALL.into_iter().map(move |count| Counter::count(count.name(), counted(count)))
    }
}

/// Loads the program that notes what leaves. `(except)` says whose fault it is when it can't be.
pub(super) fn load_notes(
    flows: FlowMap,
    options: &FlowOptions,
    maps: &Maps,
    idle: Duration,
) -> Result<Program, NotVerified> {
    let refused = |why: &dyn Display| {
        let why = format!("what establishes no flow (except): {why}; write less of it, or join it into one");
        NotVerified::Refused(why)
    };
    let program = note_program(flows, options, maps.descriptors().counters, idle);
    let instructions = program.map_err(|error| refused(&error))?.to_words();
    program::load_words(Hook::Tcx, &format!("{OUR_PROGRAM}_flows"), &instructions).map_err(
        |error| match error {
            LoadError::TooLarge { .. } => refused(&"too much for the kernel's verifier"),
            LoadError::Verifier { .. } => NotVerified::Refused(error.to_string()),
            LoadError::Right { .. } | LoadError::Bpf(_) => NotVerified::NotAsked(error.to_string()),
        },
    )
}
