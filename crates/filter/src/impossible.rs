//! Expressions that no packet can match, such as `tcp and udp`: nobody means them, and tcpdump refuses them too.
//!
//! The graph tells, as libpcap's optimizer does: where every outcome is known by the way that leads to it, none leads to a
//! match. An expression that can match is never taken for such a one, since its graph means what it means; of those that
//! can't, some are not seen.

use crate::formula::{Connective, Formula};
use crate::graph::Graph;
use crate::language::{Fault, Syntax};

/// Refuses an expression that no packet can match, given its meaning, at the part that leaves none.
pub(crate) fn refuse(syntax: &Syntax, meaning: &Formula) -> Fault {
    let mut culprit = Culprit { at: syntax.at(), is_alone: true };
    culprit.look(syntax, meaning, &|part| part);
    Fault::new(culprit.at, "it can match no packet").cure(if culprit.is_alone {
        "no packet is so"
    } else {
        "this excludes what stands before it: write 'or', or leave one of them out"
    })
}

/// The first part without which, and without all behind it, packets are left.
struct Culprit {
    at: usize,
    /// It can't match even where nothing stands before it.
    is_alone: bool,
}

impl Culprit {
    /// Looks in a part that leaves no packet; `whole` is all up to it, with another in its place.
    fn look(&mut self, syntax: &Syntax, meaning: &Formula, whole: &dyn Fn(Formula) -> Formula) {
        self.at = syntax.at();
        let (Syntax::Chain(first, rest), Formula::Chain(first_meaning, meanings)) = (syntax, meaning) else {
            return;
        };
        let up_to = |count: usize| Formula::Chain(first_meaning.clone(), meanings[..count].to_vec());
        let is_possible = |count| Graph::new(&whole(up_to(count))).map_or(true, |graph| graph.can_match());
        // Behind the last `or` each part leaves fewer packets than the one before.
        let behind_or = meanings.iter().rposition(|(connective, _)| *connective == Connective::Or);
        let starts = [behind_or.map_or(0, |last| last + 1), 0];
        let Some(mut possible) = starts.into_iter().find(|count| is_possible(*count)) else {
            return self.look(first, first_meaning, whole);
        };
        let mut impossible = meanings.len();
        while impossible - possible > 1 {
            let middle = possible.midpoint(impossible);
            if is_possible(middle) { possible = middle } else { impossible = middle }
        }
        let (Some((_, part)), Some((connective, meaning))) = (rest.get(possible), meanings.get(possible))
        else {
            return;
        };
        self.is_alone = false;
        self.look(part, meaning, &|part| {
            let before = meanings[..possible].iter().cloned();
            whole(Formula::Chain(first_meaning.clone(), before.chain([(*connective, part)]).collect()))
        });
    }
}
