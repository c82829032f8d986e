//! Rules whose lists alone say that they are met, where there are many: they are crossed.
//!
//! A rule that joins lists is code, which each packet that is in some list comes by. Of a rule that asks for lists alone that need
//! not be: whether it is met is settled by the classes of a packet's addresses and ports. So each combination of classes that
//! meets such rules is the key of a hash, and what is found there is a class like any other. It takes one search for each
//! combination of kinds of lists that rules have, and only where the packet is in a list of each of these kinds. (Cross-producting,
//! Srinivasan et al. 1998, within each tuple of a tuple space, Srinivasan et al. 1999.)

use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;

use super::classes::{Fate, Member};
use super::tables::Kind;
use super::trie::{INNER, ROOT, Trie};
use super::{Condition, Prefix};

/// Classes by [`Kind`]; 0 where none is asked for.
pub(crate) type Cell = [u32; Kind::ALL.len()];

/// Most rules in all combinations of classes together.
const MOST_CROSSED: usize = 1 << 20;

/// Most rules that only count which one combination of classes meets: the program goes through them one by one.
const MOST_COUNTING: usize = 128;

/// A list: its kind, and what is in it.
#[derive(PartialEq, Eq, Hash)]
struct List {
    kind: Kind,
    prefixes: Vec<Prefix>,
    ports: Vec<RangeInclusive<u16>>,
}

/// Rules on their way into that.
#[derive(Default)]
pub(super) struct Builder {
    /// Lists, by what is in them: the same one may stand in many rules.
    numbers: HashMap<List, u32>,
    /// Rules by their lists: numbers from 1 on, by [`Kind`].
    rules: HashMap<Cell, Vec<u32>>,
    /// What each rule does, in their order.
    fates: Vec<(u32, Option<Fate>)>,
}

impl Builder {
    /// Adds a rule; `new` is called with each of its lists that no rule before has.
    pub(super) fn add(
        &mut self,
        (index, fate): (u32, Option<Fate>),
        condition: &Condition,
        mut new: impl FnMut(Kind, Member),
    ) {
        let mut cell = [0; Kind::ALL.len()];
        for (kind, number) in Kind::ALL.into_iter().zip(&mut cell) {
            let (prefixes, ports) = (kind.prefixes(condition).to_vec(), kind.ports(condition).to_vec());
            if prefixes.is_empty() && ports.is_empty() {
                continue;
            }
            let mut list = List { kind, prefixes, ports };
            list.prefixes.sort_unstable();
            list.ports.sort_unstable_by_key(|range| (*range.start(), *range.end()));
            let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX) + 1;
            *number = *self.numbers.entry(list).or_insert(next);
            if *number == next {
                new(kind, Member::List(next));
            }
        }
        self.rules.entry(cell).or_default().push(index);
        self.fates.push((index, fate));
    }

    /// `classes` are what there is, of which a packet may have those that are `used`. `None` when that is too much.
    pub(super) fn build(self, classes: &[Vec<Member>], used: &BTreeSet<u32>) -> Option<Crossed> {
        let mut holders = vec![Vec::new(); self.numbers.len() + 1];
        for class in used {
            for member in &classes[*class as usize] {
                if let Member::List(list) = member {
                    holders[*list as usize].push(*class);
                }
            }
        }
        let mut met: HashMap<Cell, Vec<u32>> = HashMap::new();
        let mut left = MOST_CROSSED;
        for (lists, rules) in &self.rules {
            let mut cells = vec![[0; Kind::ALL.len()]];
            for (at, list) in lists.iter().enumerate().filter(|(_, list)| **list != 0) {
                let holders = &holders[*list as usize];
                left = left.checked_sub(cells.len() * holders.len())?;
                let with = |cell: &Cell| {
                    let cell = *cell;
                    holders.iter().map(move |class| {
                        let mut cell = cell;
                        cell[at] = *class;
                        cell
                    })
                };
                cells = cells.iter().flat_map(with).collect();
            }
            left = left.checked_sub(cells.len() * rules.len())?;
            for cell in cells {
                met.entry(cell).or_default().extend(rules);
            }
        }
        Crossed::new(classes.len(), met, &self.fates)
    }
}

/// Rules that are crossed.
#[derive(Debug, Default)]
pub(super) struct Crossed {
    /// The class of each combination of two or more.
    cells: HashMap<Cell, u32>,
    /// The kinds of which there are combinations, a bit for each.
    shapes: Vec<u8>,
    /// What each class meets, in order.
    met: Vec<Box<[u32]>>,
    /// Of each class, the number of the first rule that decides, and where in `counting` those begin that are met before, and only count.
    decides: Vec<(Option<u64>, Option<usize>)>,
    /// Rules that only count; behind the last of each class, [`END`].
    counting: Vec<u32>,
    most_counting: usize,
    takes: bool,
}

/// No rule.
const END: u32 = u32::MAX;

impl Crossed {
    /// Of so many classes, and what combinations of them meet.
    fn new(classes: usize, met: HashMap<Cell, Vec<u32>>, fates: &[(u32, Option<Fate>)]) -> Option<Self> {
        let mut crossed = Self { met: vec![Box::default(); classes], ..Self::default() };
        let mut numbers: HashMap<Box<[u32]>, u32> = HashMap::new();
        let mut shapes = BTreeSet::new();
        for (cell, mut rules) in met {
            rules.sort_unstable();
            let shape = shape(&cell);
            if shape.count_ones() == 1 {
                // What one class alone meets is a part of what it means.
                let class = cell.into_iter().max().unwrap_or(0);
                crossed.met[class as usize] = rules.into();
                continue;
            }
            shapes.insert(shape);
            let next = u32::try_from(crossed.met.len()).ok()?;
            let number = *numbers.entry(rules.into()).or_insert_with_key(|rules| {
                crossed.met.push(rules.clone());
                next
            });
            crossed.cells.insert(cell, number);
        }
        crossed.shapes = shapes.into_iter().collect();
        for rules in &crossed.met {
            let fate = |index: &u32| {
                let at = fates.binary_search_by_key(index, |(index, _)| *index).ok()?;
                fates[at].1
            };
            let first = rules.iter().find_map(|index| Some((*index, fate(index)?)));
            let counting = rules.iter().copied().filter(|index| fate(index).is_none());
            let begins = crossed.counting.len();
            crossed
                .counting
                .extend(counting.take_while(|index| first.is_none_or(|(first, _)| *index < first)));
            let count = crossed.counting.len() - begins;
            crossed.most_counting = crossed.most_counting.max(count);
            if count > 0 {
                crossed.counting.push(END);
            }
            crossed.takes |= first.is_some_and(|(_, fate)| fate == Fate::Take);
            let number = first.map(|(index, fate)| fate.number(index));
            crossed.decides.push((number, (count > 0).then_some(begins)));
        }
        (crossed.most_counting <= MOST_COUNTING).then_some(crossed)
    }

    /// Whether there is any.
    pub(super) fn is_used(&self) -> bool {
        !self.met.is_empty()
    }

    pub(super) fn shapes(&self) -> &[u8] {
        &self.shapes
    }

    /// Whether some ask user space.
    pub(super) fn takes(&self) -> bool {
        self.takes
    }

    /// How many a class has that only count, at most.
    pub(super) fn most_counting(&self) -> usize {
        self.most_counting
    }

    pub(super) fn counting(&self) -> &[u32] {
        &self.counting
    }

    pub(super) fn cells(&self) -> &HashMap<Cell, u32> {
        &self.cells
    }

    /// Of each class: the first rule that decides, as a number, and where those begin that only count.
    pub(super) fn decides(&self) -> &[(Option<u64>, Option<usize>)] {
        &self.decides
    }

    /// The first rule from an index on that a packet of these classes meets.
    #[inline(never)]
    pub(super) fn next(&self, classes: &Cell, from: u32) -> Option<u32> {
        let of_shape = |shape: &u8| {
            let mut cell = *classes;
            for (at, class) in cell.iter_mut().enumerate() {
                *class *= u32::from(shape >> at & 1);
            }
            self.cells.get(&cell).copied()
        };
        let all = classes.iter().copied().chain(self.shapes.iter().filter_map(of_shape));
        let next = |class: u32| {
            let rules = self.met.get(class as usize)?;
            rules.get(rules.partition_point(|index| *index < from)).copied()
        };
        all.filter_map(next).min()
    }
}

/// The kinds of which a combination has classes, a bit for each.
fn shape(cell: &Cell) -> u8 {
    cell.iter().enumerate().fold(0, |shape, (at, class)| shape | u8::from(*class != 0) << at)
}

/// The classes that addresses and ports have.
pub(super) fn used(
    tries: &[Option<Trie>; 2],
    six: &[HashMap<(u8, u128), u32>; 2],
    ports: &[Option<Box<[u32; ROOT]>>; 2],
) -> BTreeSet<u32> {
    let tries = tries.iter().flatten();
    let entries = tries.flat_map(|trie| trie.root.iter().chain(trie.blocks.iter().flatten()));
    let entries = entries.filter(|entry| **entry & INNER == 0);
    let six = six.iter().flat_map(HashMap::values);
    let ports = ports.iter().flatten().flat_map(|table| table.iter());
    entries.chain(six).chain(ports).copied().collect()
}
