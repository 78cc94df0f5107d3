//! The threads of other processes: which of them take time from a core.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::system::System;

/// The CPU time of all threads that this process can see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tasks(BTreeMap<(u32, u32), Task>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Task {
    name: String,
    /// The core that the thread ran on last.
    core: usize,
    /// CPU time in ticks of the kernel.
    ticks: u64,
}

/// A thread that took time from a core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Taker {
    /// The name of the thread.
    pub name: String,
    /// Its process.
    pub process: u32,
    /// The core that it ran on last.
    pub core: usize,
    /// Its share of that core's time, in thousandths.
    pub permille: u64,
}

impl Taker {
    /// `cc1plus (process 4711) took 60.0 % of it`.
    pub(crate) fn text(&self) -> String {
        let Self { name, process, .. } = self;
        let share = percent(self.permille);
        format!("{name} (process {process}) took {share} of it")
    }
}

impl Tasks {
    /// Reads the times of the threads of all processes except these.
    pub(crate) fn read(system: &System, except: &[u32]) -> Self {
        let numbers = |path: &str| -> Vec<u32> {
            let names = system.names(path).into_iter();
            names.filter_map(|name| name.parse().ok()).collect()
        };
        let mut tasks = BTreeMap::new();
        for process in numbers("/proc") {
            if except.contains(&process) {
                continue;
            }
            for thread in numbers(&format!("/proc/{process}/task")) {
                // A thread may end between the two readings.
                let stat = system.text(&format!("/proc/{process}/task/{thread}/stat"));
                if let Some(task) = stat.as_deref().and_then(Task::parse) {
                    tasks.insert((process, thread), task);
                }
            }
        }
        Self(tasks)
    }

    /// The threads that took time from `core` since `before`, the one that took most first. `ticks` is the time that
    /// passed, in ticks of the kernel.
    pub(crate) fn takers_since(&self, before: &Self, core: usize, ticks: u64) -> Vec<Taker> {
        let on_it = self.0.iter().filter(|(_, task)| task.core == core);
        let mut takers: Vec<Taker> = on_it
            .filter_map(|(key, task)| {
                let at_first = before.0.get(key).map_or(0, |task| task.ticks);
                let took = task.ticks.saturating_sub(at_first);
                let permille = took.saturating_mul(1000).checked_div(ticks)?.min(1000);
                (permille > 0).then(|| Taker {
                    name: task.name.clone(),
                    process: key.0,
                    core,
                    permille,
                })
            })
            .collect();
        takers.sort_by_key(|taker| std::cmp::Reverse(taker.permille));
        takers
    }
}

impl Task {
    /// Parses a line of `/proc/PID/task/TID/stat`. The name is in parentheses, and may have any characters.
    fn parse(stat: &str) -> Option<Self> {
        let (before, rest) = stat.rsplit_once(')')?;
        let (_, name) = before.split_once('(')?;
        let words: Vec<&str> = rest.split_whitespace().collect();
        // Numbered as in proc(5), from 1 for the process ID: the state after the name is number 3.
        let number = |field: usize| words.get(field - 3)?.parse::<u64>().ok();
        Some(Self {
            name: name.to_owned(),
            ticks: number(14)?.saturating_add(number(15)?),
            core: usize::try_from(number(39)?).ok()?,
        })
    }
}

/// A share in thousandths as a percentage.
pub(crate) fn percent(permille: u64) -> String {
    format!("{}.{} %", permille / 10, permille % 10)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::system::tests::FakeMachine;

    /// The line of a thread with this time on this core.
    pub(crate) fn stat(name: &str, user: u64, system: u64, core: usize) -> String {
        format!(
            "7 ({name}) R 1 1 1 0 -1 0 0 0 0 0 {user} {system} 0 0 20 0 1 0 5 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 \
             {core} 0 0"
        )
    }

    #[test]
    fn a_line_has_name_time_and_core_whatever_the_name_is() {
        for name in ["cc1plus", "a b", "x) R 1 (y", ""] {
            let task = Task::parse(&stat(name, 30, 12, 3)).unwrap();
            assert_eq!((task.name.as_str(), task.ticks, task.core), (name, 42, 3));
        }
        for nonsense in ["", "7 (x", "7 (x) R", "7 (x) R 1 2 3"] {
            assert_eq!(Task::parse(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn the_threads_of_a_core_are_named_by_what_they_took() {
        let machine = FakeMachine::empty();
        for (process, thread, line) in [
            (5, 5, stat("rustc", 100, 0, 1)),
            (5, 6, stat("opt", 100, 0, 1)),
            (6, 6, stat("elsewhere", 100, 0, 0)),
            (7, 7, stat("ours", 100, 0, 1)),
        ] {
            machine.set(&format!("proc/{process}/task/{thread}/stat"), &line);
        }
        let before = Tasks::read(&machine.system(), &[7]);
        machine.set("proc/5/task/5/stat", &stat("rustc", 110, 10, 1));
        machine.set("proc/5/task/6/stat", &stat("opt", 150, 0, 1));
        machine.set("proc/7/task/7/stat", &stat("ours", 200, 0, 1));
        machine.set("proc/9/task/9/stat", &stat("new", 5, 0, 1));
        let after = Tasks::read(&machine.system(), &[7]);
        let takers = after.takers_since(&before, 1, 100);
        let texts: Vec<String> = takers.iter().map(Taker::text).collect();
        let expected = [
            "opt (process 5) took 50.0 % of it",
            "rustc (process 5) took 20.0 % of it",
            "new (process 9) took 5.0 % of it",
        ];
        assert_eq!(texts, expected);
        assert!(after.takers_since(&after, 1, 100).is_empty());
        assert!(after.takers_since(&before, 1, 0).is_empty());
    }

    #[test]
    fn this_process_is_there_unless_it_is_left_out() {
        let (system, own) = (System::below("/".as_ref()), std::process::id());
        let is_there = |tasks: &Tasks| tasks.0.keys().any(|(process, _)| *process == own);
        assert!(is_there(&Tasks::read(&system, &[])));
        assert!(!is_there(&Tasks::read(&system, &[own])));
    }
}
