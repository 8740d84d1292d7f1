//! What the rules say of a tool, a rate, a memory path and a file path, each with the sentence that explains a refusal
//! (`[7.6]`). [`super::admit`] asks them in the order of `[4.1]`.

use super::files::{FilePathFault, FileVerdict, MAX_PATH, normal};
use super::refusal::{path_denial, tool_denial};
use super::rules::Verdict;
use super::{Grants, canonical_memory, named, never};
use crate::beneath::FileTarget;
use crate::call::{Denial, DenialClass, Refusal};
use crate::words::{nearest, shortened};
use std::path::Path;

impl Grants {
    /// Judges the canonical path of what was opened for `target` (`[4.4]`): it must still be granted.
    pub fn recheck(&self, target: &FileTarget, canonical: &Path) -> Result<(), Denial> {
        let asked = target.path.to_string_lossy().into_owned();
        let of_another = never::state_of_an_up(canonical).map(FileVerdict::Never);
        let verdict = of_another.unwrap_or_else(|| self.files.judge(canonical));
        self.judge_verdict(verdict, canonical, &asked).map_err(|denial| {
            if canonical == target.path {
                return denial;
            }
            let sentence = format!("{:?} leads to {canonical:?}. {}", target.path, denial.sentence);
            Denial { sentence, ..denial }
        })
    }

    pub(super) fn judge_tool(&self, tool: &str) -> Result<(), Denial> {
        let shown = shortened(tool);
        if let Some(rule) = self.disallowed_tools.iter().find(|t| t.value == tool) {
            return Err(Denial {
                rule: format!("disallowed_tools line {}", rule.line),
                sentence: format!(
                    "{shown:?} stands in disallowed_tools (SKILL.md line {}), which wins over allowed_tools. \
                     Without that line allowed_tools and the operator's grants decide.",
                    rule.line
                ),
                ..tool_denial("tool_in_disallowed_tools")
            });
        }
        if self.tool_allowed(tool) {
            return Ok(());
        }
        if let Some(wish) = self.allowed_tools.iter().find(|t| t.value == tool) {
            let offer = if self.tool_grantors.iter().any(|g| g.offered && g.admits(tool)) {
                format!(", or `cyberos skill approve {}`", self.skill_id)
            } else {
                String::new()
            };
            return Err(Denial {
                rule: named(&self.tool_grantors),
                sentence: format!(
                    "{shown:?} is asked for (allowed_tools line {}), but {} does not give it. {tool:?} in `tools:` \
                     under grants.skills.{} in cyberos.yaml would allow it{offer}.",
                    wish.line,
                    named(&self.tool_grantors),
                    self.skill_id
                ),
                ..tool_denial("tool_not_in_allowed_tools")
            });
        }
        let allowed = self.tools();
        let near = nearest(tool, allowed.iter().copied());
        let nearest = match near {
            Some(near) => format!("the nearest that is allowed is {near:?}"),
            None if allowed.is_empty() => "no tool is allowed".to_owned(),
            None => format!("allowed are {}", allowed.join(", ")),
        };
        Err(Denial {
            rule: "allowed_tools".into(),
            sentence: format!(
                "{shown:?} is not in allowed_tools of SKILL.md; {nearest}. The line `- {}` there would allow it, if \
                 there is such a tool and the operator grants it.",
                shown.escape_debug()
            ),
            ..tool_denial("tool_not_in_allowed_tools")
        })
    }

    pub(super) fn unknown_tool(tool: &str) -> Denial {
        Denial {
            class: DenialClass::UnknownTool,
            reason: "unknown_tool",
            rule: "registered tools".into(),
            sentence: format!(
                "{:?} is allowed, but this broker has no such tool; nothing in SKILL.md or cyberos.yaml can \
                 change that.",
                shortened(tool)
            ),
            ..tool_denial("unknown_tool")
        }
    }

    pub(super) fn judge_rate(&self, tool: &str, within: bool) -> Result<(), Denial> {
        match self.per_minute {
            Some(per_minute) if !within => Err(Denial {
                class: DenialClass::RateLimited,
                rule: "x-rate-limit-per-minute".into(),
                sentence: format!(
                    "{:?} was refused: the skill has made {per_minute} calls within a minute, as many as \
                     x-rate-limit-per-minute in its SKILL.md allows. A higher number there, or fewer calls, \
                     would allow it.",
                    shortened(tool)
                ),
                ..tool_denial("rate_limited")
            }),
            _ => Ok(()),
        }
    }

    /// A memory path (not a search root) in canonical form, if it is granted. `pattern` is what a refusal proposes in
    /// place of a path that nobody will ask for again.
    pub(super) fn judge_memory(&self, asked: &str, pattern: Option<&str>) -> Result<String, Refusal> {
        let canonical = match canonical_memory(asked, false) {
            Ok(canonical) => canonical,
            Err(fault) if fault.is_bad_params() => return Err(Refusal::BadParams(format!("path: {fault}"))),
            Err(fault) => {
                return Err(Denial {
                    subject: asked.to_owned(),
                    rule: "form of memory paths".into(),
                    sentence: format!(
                        "{asked:?} is no path of a memory file: {fault}. No grant can allow it."
                    ),
                    ..path_denial(DenialClass::ScopeViolation, "scope_violation", asked)
                }
                .into());
            }
        };
        let path = Path::new(&canonical);
        let (reason, rule, sentence) = match self.memory.judge(path) {
            Verdict::Granted => return Ok(canonical),
            Verdict::NotWished => {
                ("scope_violation", self.memory.field_rule(path), self.memory.not_wished_but(path, pattern))
            }
            Verdict::NotGranted(wish) => (
                "not_granted_by_operator",
                self.memory.grantor_names(),
                self.memory.not_granted_but(path, wish, pattern),
            ),
        };
        let denial = path_denial(DenialClass::ScopeViolation, reason, asked);
        Err(Denial { subject: canonical, rule, sentence, ..denial }.into())
    }

    pub(super) fn file_target(&self, asked: &str) -> Result<FileTarget, Refusal> {
        let path = match normal(asked) {
            Ok(path) => path,
            Err(FilePathFault::Empty) => return Err(Refusal::BadParams("path: the path is empty".into())),
            Err(FilePathFault::Nul) => return Err(Refusal::BadParams("path: the path holds a NUL".into())),
            Err(FilePathFault::TooLong) => {
                return Err(Refusal::BadParams(format!("path: the path has more than {MAX_PATH} bytes")));
            }
            Err(FilePathFault::Relative) => {
                return Err(Denial {
                    subject: asked.to_owned(),
                    rule: "form of file paths".into(),
                    sentence: format!(
                        "{:?} is relative, and there is no directory that it could be relative to; file paths begin \
                         with '/'. No grant can allow it.",
                        asked
                    ),
                    ..path_denial(DenialClass::FileViolation, "file_violation", asked)
                }
                .into());
            }
        };
        self.judge_file(&path, asked)?;
        Ok(self.files.target(path))
    }

    fn judge_file(&self, path: &Path, asked: &str) -> Result<(), Denial> {
        self.judge_verdict(self.files.judge(path), path, asked)
    }

    fn judge_verdict(&self, verdict: FileVerdict, path: &Path, asked: &str) -> Result<(), Denial> {
        let rules = &self.files.rules;
        let (reason, rule, sentence) = match verdict {
            FileVerdict::Granted => return Ok(()),
            FileVerdict::NotWished(None) => {
                ("file_violation", rules.field_rule(path), rules.not_wished(path))
            }
            FileVerdict::NotWished(Some(entry)) => (
                "file_violation",
                rules.field_rule(path),
                format!(
                    "{path:?} matches no pattern of {} in SKILL.md, and lies under {}, which no frontmatter \
                     and no operator can grant.",
                    rules.field,
                    entry.display()
                ),
            ),
            FileVerdict::NotGranted(wish) => {
                ("not_granted_by_operator", rules.grantor_names(), rules.not_granted(path, wish))
            }
            FileVerdict::Never(entry) => (
                "never_grantable",
                format!("never grantable: {}", entry.display()),
                format!(
                    "{path:?} lies under {}, which no frontmatter and no operator can grant. Copy what the skill needs \
                     to a directory that can be granted.",
                    entry.display()
                ),
            ),
        };
        let denial = path_denial(DenialClass::FileViolation, reason, asked);
        Err(Denial { subject: path.to_string_lossy().into_owned(), rule, sentence, ..denial })
    }
}
