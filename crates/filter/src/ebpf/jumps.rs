//! Jumps made short, once a program is complete: what an expression or a rule leads to is not known before all of it stands.

use super::Instruction;

/// Makes jumps that lead to jumps lead where those do, turns those round that only leave one out, and finds what is left:
/// what can't be reached is not, nor what leads where it goes on anyway.
pub(super) fn shorten(instructions: &mut [Instruction], goals: &mut [Option<usize>]) -> Vec<bool> {
    let end = instructions.len();
    for at in 0..end {
        // Only forwards: those that lead back may go in a circle.
        while let Some(goal) = goals[at].filter(|goal| *goal < end && instructions[*goal].is_jump())
            && let Some(beyond) = goals[goal].filter(|beyond| *beyond > goal)
        {
            goals[at] = Some(beyond);
        }
    }
    let mut is_left = reached(instructions, goals);
    let mut is_goal = vec![false; end + 1];
    for (goal, _) in goals.iter().zip(&is_left).filter(|(_, is_left)| **is_left) {
        goal.iter().for_each(|goal| is_goal[*goal] = true);
    }
    let from = |is_left: &[bool], at: usize| (at..end).find(|at| is_left[*at]).unwrap_or(end);
    for at in (0..end).filter(|at| is_left[*at]).collect::<Vec<_>>() {
        let over = from(&is_left, at + 1);
        // `if a goto B; goto C; B:` is `if not a goto C`.
        if let Some(turned) = instructions[at].turned_round()
            && over < end
            && instructions[over].is_jump()
            && !is_goal[over]
            && goals[at].map(|goal| from(&is_left, goal)) == Some(from(&is_left, over + 1))
        {
            (instructions[at], goals[at], is_left[over]) = (turned, goals[over], false);
        }
    }
    for at in (0..end).rev() {
        if let Some(goal) = goals[at].filter(|goal| instructions[at].is_jump() && *goal > at) {
            is_left[at] &= is_left[at + 1..goal].contains(&true);
        }
    }
    is_left
}

/// Which instructions can be reached from the first.
fn reached(instructions: &[Instruction], goals: &[Option<usize>]) -> Vec<bool> {
    let mut reached = vec![false; instructions.len()];
    let mut next = vec![0];
    while let Some(at) = next.pop() {
        let Some(seen @ false) = reached.get_mut(at) else { continue };
        *seen = true;
        next.extend(goals[at]);
        if instructions[at].goes_on() {
            next.push(at + 1);
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::super::{Assembler, Condition, Label, Register};

    /// Made with three labels, which the last three instructions stand at: r0 = 1, r0 = 2, and the end.
    fn lines(make: impl FnOnce(&mut Assembler, [Label; 3])) -> Vec<String> {
        let mut assembler = Assembler::new();
        let [one, two, end] = [(); 3].map(|()| assembler.label());
        make(&mut assembler, [one, two, end]);
        for (label, number) in [(one, 1), (two, 2)] {
            assembler.place(label);
            assembler.mov(Register::R0, number);
            assembler.jump(end);
        }
        assembler.place(end);
        assembler.exit();
        assembler.finish().unwrap().to_string().lines().map(|line| line[6..].to_owned()).collect()
    }

    #[test]
    fn a_jump_over_a_jump_is_turned_round() {
        for (condition, turned) in [
            (Condition::Equal, "!="),
            (Condition::NotEqual, "=="),
            (Condition::Greater, "<="),
            (Condition::LessOrEqual, ">"),
            (Condition::Less, ">="),
            (Condition::GreaterOrEqual, "<"),
        ] {
            let lines = lines(|assembler, [one, two, _]| {
                assembler.jump_if32(Register::R3, condition, 7, one);
                assembler.jump(two);
            });
            let first = format!("if w3 {turned} 7 goto 3");
            assert_eq!(lines, [&first, "r0 = 1", "goto 4", "r0 = 2", "exit"]);
        }
        let common = lines(|assembler, [one, two, _]| {
            assembler.jump_if(Register::R3, Condition::CommonBit, 7, one);
            assembler.jump(two);
        });
        assert_eq!(common[..2], ["if r3 & 7 goto 2", "goto 4"], "there is no other way round");
    }

    #[test]
    fn a_jump_to_a_jump_leads_where_that_does() {
        let lines = lines(|assembler, [one, two, end]| {
            let [far, farther] = [(); 2].map(|()| assembler.label());
            assembler.jump_if(Register::R3, Condition::Equal, 7, far);
            assembler.jump_if(Register::R3, Condition::Equal, 8, one);
            assembler.jump(end);
            assembler.place(far);
            assembler.jump(farther);
            assembler.place(farther);
            assembler.jump(two);
        });
        let left = ["if r3 == 7 goto 4", "if r3 != 8 goto 5", "r0 = 1", "goto 5", "r0 = 2", "exit"];
        assert_eq!(lines, left);
    }

    /// What leads back is not followed: it may go in a circle.
    #[test]
    fn what_leads_back_stays() {
        let lines = lines(|assembler, [_, two, _]| {
            let [back, over] = [(); 2].map(|()| assembler.label());
            assembler.mov(Register::R1, 0);
            assembler.place(back);
            assembler.jump_if(Register::R1, Condition::Equal, 3, over);
            assembler.jump(back);
            assembler.place(over);
            assembler.mov(Register::R2, 0);
            assembler.jump_if(Register::R1, Condition::Equal, 4, back);
            assembler.jump(two);
        });
        let left = ["r1 = 0", "if r1 != 3 goto 1", "r2 = 0", "if r1 == 4 goto 1", "r0 = 2", "exit"];
        assert_eq!(lines, left);
    }

    /// A jump that another one leads to can't be left out.
    #[test]
    fn a_jump_that_is_led_to_stays() {
        let lines = lines(|assembler, [one, _, _]| {
            let [start, back, over] = [(); 3].map(|()| assembler.label());
            assembler.place(start);
            assembler.mov(Register::R1, 0);
            assembler.jump_if(Register::R3, Condition::Equal, 7, over);
            assembler.place(back);
            assembler.jump(start);
            assembler.place(over);
            assembler.mov(Register::R2, 0);
            assembler.jump_if(Register::R3, Condition::Equal, 8, back);
            assembler.jump(one);
        });
        let left = ["if r3 == 7 goto 3", "goto 0", "r2 = 0", "if r3 == 8 goto 2", "r0 = 1", "exit"];
        assert_eq!(lines[1..], left);
    }
}
