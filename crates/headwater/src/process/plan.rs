//! A declaration, compiled: which steps start together, and what follows them.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::data::ProcessData;
use super::definition::{Choose, Node, Path, Step};
use crate::error::{Error, Result, panic_text};
use crate::name::check_name;

/// A type: each block of steps says what follows it.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) name: String,
    blocks: Vec<Block>,
    branches: Vec<Branch>,
    entry: Target,
}

/// Steps that start together.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) name: String,
    pub(crate) steps: Vec<Step>,
    after: Target,
}

#[derive(Debug)]
struct Branch {
    name: String,
    choose: Choose,
    arms: Vec<(String, Target)>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Target {
    #[default]
    End,
    Block(usize),
    Branch(usize),
}

/// Why no way leads on: the branch, and its error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoWay {
    pub(crate) branch: String,
    pub(crate) error: String,
}

impl Plan {
    /// Checks a declaration.
    pub(super) fn new(name: &str, path: &Path) -> Result<Self> {
        let mut plan = Plan { name: name.to_owned(), ..Plan::default() };
        plan.entry = plan.add(path, Target::End)?;
        plan.check_names()?;
        if plan.begins_empty(plan.entry) {
            let rule = format!("type {name} must begin with a step on every way, and have at least one");
            return Err(Error::invalid("steps", rule));
        }
        Ok(plan)
    }

    /// Adds a path that leads to a target, from its end, and returns where it begins.
    fn add(&mut self, path: &Path, after: Target) -> Result<Target> {
        let mut target = after;
        for node in path.0.iter().rev() {
            target = match node {
                Node::Steps(name, steps) => {
                    check_name("steps", name)?;
                    if steps.is_empty() {
                        return Err(Error::invalid(
                            "steps",
                            format!("{name} has none; add one, or leave it out"),
                        ));
                    }
                    steps.iter().try_for_each(Step::check)?;
                    self.blocks.push(Block { name: name.clone(), steps: steps.clone(), after: target });
                    Target::Block(self.blocks.len() - 1)
                }
                Node::Branch(name, choose, paths) => {
                    check_name("branch", name)?;
                    let mut arms = Vec::with_capacity(paths.len());
                    for (arm, path) in paths {
                        if arms.iter().any(|(other, _)| other == arm) {
                            return Err(Error::invalid("branch", format!("{name} has arm {arm} twice")));
                        }
                        arms.push((arm.clone(), self.add(path, target)?));
                    }
                    self.branches.push(Branch { name: name.clone(), choose: choose.clone(), arms });
                    Target::Branch(self.branches.len() - 1)
                }
            };
        }
        Ok(target)
    }

    fn check_names(&self) -> Result<()> {
        let mut seen = HashSet::new();
        for step in self.steps() {
            if !seen.insert(&step.name) {
                let rule = format!("{} is the name of two steps; names are unique in a process", step.name);
                return Err(Error::invalid("step", rule));
            }
        }
        Ok(())
    }

    /// Whether a way from here to the end has no step.
    fn begins_empty(&self, target: Target) -> bool {
        match target {
            Target::End => true,
            Target::Block(_) => false,
            Target::Branch(at) => {
                let arms = &self.branches[at].arms;
                arms.is_empty() || arms.iter().any(|(_, target)| self.begins_empty(*target))
            }
        }
    }

    /// Sets what a topic allows.
    pub(crate) fn set_payload_bytes_max(&mut self, topic: &str, bytes: usize) {
        let steps = self.blocks.iter_mut().flat_map(|block| &mut block.steps);
        steps.filter(|step| step.topic == topic).for_each(|step| step.payload_bytes_max = bytes);
    }

    /// The topics of its steps.
    pub(crate) fn topics(&self) -> Vec<String> {
        let mut topics: Vec<String> = self.steps().map(|step| step.topic.clone()).collect();
        topics.sort_unstable();
        topics.dedup();
        topics
    }

    /// Every step.
    pub(crate) fn steps(&self) -> impl Iterator<Item = &Step> {
        self.blocks.iter().flat_map(|block| &block.steps)
    }

    /// A step, by its name.
    pub(crate) fn step(&self, name: &str) -> Option<&Step> {
        self.steps().find(|step| step.name == name)
    }

    /// The steps that a process begins with.
    pub(crate) fn first(&self, data: Option<&ProcessData>) -> Result<Option<&Block>, NoWay> {
        self.resolve(self.entry, data)
    }

    /// The block of a step.
    pub(crate) fn block_of(&self, step: &str) -> Option<&Block> {
        self.blocks.iter().find(|block| block.steps.iter().any(|other| other.name == step))
    }

    /// The steps after a block; `None` at the end.
    pub(crate) fn after(&self, block: &Block, data: Option<&ProcessData>) -> Result<Option<&Block>, NoWay> {
        self.resolve(block.after, data)
    }

    /// Ends: every arm leads on to what follows its branch.
    fn resolve(&self, mut target: Target, data: Option<&ProcessData>) -> Result<Option<&Block>, NoWay> {
        let empty = ProcessData::stored("{}".to_owned());
        let data = data.unwrap_or(&empty);
        loop {
            let branch = match target {
                Target::End => return Ok(None),
                Target::Block(at) => return Ok(Some(&self.blocks[at])),
                Target::Branch(at) => &self.branches[at],
            };
            let failed = |error: String| NoWay { branch: branch.name.clone(), error };
            let chosen = catch_unwind(AssertUnwindSafe(|| (branch.choose.0)(data)));
            let arm = match chosen {
                Ok(Ok(arm)) => arm,
                Ok(Err(error)) => return Err(failed(error.to_string())),
                Err(panic) => return Err(failed(format!("it panicked: {}", panic_text(&*panic)))),
            };
            let found = branch.arms.iter().find(|(name, _)| name == arm);
            target = found.ok_or_else(|| failed(format!("it has no arm {arm}")))?.1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::process::definition::ProcessType;

    fn step(name: &str) -> Step {
        Step::new(name, "work", "Do")
    }

    /// The names of the blocks on the way that these data lead along.
    fn way(plan: &Plan, data: &str) -> Vec<String> {
        let data = ProcessData::from_json(data).unwrap();
        let mut names = Vec::new();
        let mut at = plan.first(Some(&data)).unwrap();
        while let Some(block) = at {
            names.push(block.name.clone());
            at = plan.after(block, Some(&data)).unwrap();
        }
        names
    }

    fn branching() -> ProcessType {
        let choose = |data: &ProcessData| -> Result<&'static str> {
            Ok(match data.get::<u8>("n")? {
                Some(1) => "one",
                Some(2) => "two",
                Some(9) => panic!("nine"),
                _ => "none",
            })
        };
        ProcessType::new("order")
            .step(step("a"))
            .branch(
                "how",
                choose,
                [
                    (
                        "one",
                        Path::new().step(step("b")).branch(
                            "again",
                            choose,
                            [("one", Path::new().step(step("c")))],
                        ),
                    ),
                    ("two", Path::new()),
                ],
            )
            .parallel("both", [step("d"), step("e")])
    }

    #[test]
    fn a_way_leads_through_the_arms_that_the_data_choose() {
        let plan = branching().plan().unwrap();
        assert_eq!(way(&plan, r#"{"n":1}"#), ["a", "b", "c", "both"]);
        assert_eq!(way(&plan, r#"{"n":2}"#), ["a", "both"]);
        assert_eq!(plan.block_of("e").map(|block| block.name.as_str()), Some("both"));
        assert_eq!((plan.steps().count(), plan.step("x").is_none()), (5, true));
        let a = plan.block_of("a").unwrap();
        for (data, says) in [
            (r#"{"n":3}"#, "it has no arm none"),
            (r#"{"n":"x"}"#, "invalid data member n"),
            (r#"{"n":9}"#, "it panicked: nine"),
        ] {
            let data = ProcessData::from_json(data).unwrap();
            let no_way = plan.after(a, Some(&data)).unwrap_err();
            assert!(no_way.branch == "how" && no_way.error.contains(says), "{no_way:?}");
        }
    }

    #[test]
    fn a_wrong_declaration_is_refused_by_name() {
        let one = |step: Step| ProcessType::new("order").step(step);
        let second = Duration::from_secs(1);
        for (wrong, says) in [
            (ProcessType::new(""), "process_type"),
            (ProcessType::new(&"x".repeat(250)).step(step("a")), "at most 247"),
            (ProcessType::new("order"), "at least one"),
            (ProcessType::new("order").parallel("none", []), "none has none"),
            (one(step("a")).step(step("a")), "a is the name of two steps"),
            (one(Step::new("", "work", "Do")), "invalid step"),
            (one(Step::new("a", "", "Do")), "invalid topic"),
            (one(Step::new("a", "work", "")), "invalid command"),
            (one(step("a").compensation("")), "invalid compensation"),
            (one(step("a").attempts(0)), "attempts of step a"),
            (one(step("a").timeout(Duration::ZERO)), "timeout of step a"),
            (one(step("a").backoff(second * 2, second)), "backoff of step a"),
            (
                ProcessType::new("order").branch("b", |_| Ok("x"), [("x", Path::new())]),
                "must begin with a step",
            ),
            (
                one(step("a")).branch("b", |_| Ok("x"), [("x", Path::new()), ("x", Path::new())]),
                "arm x twice",
            ),
        ] {
            let error = wrong.plan().unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidInput);
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
