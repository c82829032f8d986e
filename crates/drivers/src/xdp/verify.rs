//! Whether the kernel's verifier takes the program of rules, which it says when it is given it: for rules that are on no interface
//! yet.

use bywash_filter::Hook;
use bywash_filter::rules::{Rest, RuleProgram, SynCookies};
use bywash_filter::xdp::NeverTake;
use bywash_port::Rules;
use bywash_sys::bpf::BpfError;

use super::flows::Table;
use super::program::{self, Maps};
use super::rules::{Lists, load};

/// Why it is not known that the verifier takes rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotVerified {
    /// It does not take them.
    #[error("{0}")]
    Refused(String),
    /// It was not asked.
    #[error("{0}")]
    NotAsked(String),
}

/// Has it verify their program for XDP. Nothing is left of it.
///
/// # Errors
/// [`NotVerified`]
pub fn verify(rules: &Rules, never_take: &NeverTake) -> Result<(), NotVerified> {
    let not_asked = |error: BpfError| NotVerified::NotAsked(error.to_string());
    let maps = Maps::create(Hook::Xdp, 1, true).map_err(not_asked)?;
    let slots: Vec<u32> = (0..).take(rules.set.rules().len()).collect();
    let lists = Lists::create(&rules.set, &slots).map_err(not_asked)?;
    let flows = rules.set.longest_idle().map(|_| Table::create(rules.flows.most, None));
    let flows = flows.transpose().map_err(NotVerified::NotAsked)?;
    let never = [&[never_take.expression()], &rules.never[..]].concat();
    let program = RuleProgram {
        hook: Hook::Xdp,
        rules: &rules.set,
        slots: &slots,
        only: None,
        never: &never,
        rest: Rest::Kernel,
        maps: maps.descriptors(),
        sets: lists.descriptors(),
        hung_after_jiffies: program::hung_after(),
        buff: program::buff(),
        cookies: SynCookies::default(),
        flows: flows.as_ref().map(Table::reached),
    };
    // Whoever may make maps may load programs: it is the same right, but for CAP_NET_ADMIN.
    load(&program).map(drop).map_err(NotVerified::Refused)
}
