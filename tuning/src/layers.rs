//! Layers of settings, on top of each other: built-in defaults, family, device, the user's file, the command line; all
//! limited by what the device can do.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use crate::environment::EnvironmentRule;
use crate::error::Error;
use crate::families;
use crate::knobs::{Profile, Settings};
use crate::origin::{Knob, Origin};
use crate::table::Table;
use crate::text::ProfileText;

/// Where a value came from, and why it is what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    origin: Origin,
    source: Option<String>,
}

/// A value that was cut down to what the device can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clamp {
    /// The knob, with the value that was asked for and the layer that did.
    pub asked: Knob,
    /// The value that is used instead, as TOML writes it.
    pub used: String,
    /// The device with the limit.
    pub of: String,
}

impl fmt::Display for Clamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, used, of } = self;
        write!(f, "{asked} is beyond what {of} can do: {used} is used")
    }
}

/// A checked profile, with the name that it goes by and the origin of every value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// The knobs.
    pub profile: Profile,
    /// The name or the path that the profile was chosen by, for reports.
    pub name: String,
    /// Values that the device cannot provide: each deserves a warning.
    pub clamps: Vec<Clamp>,
    /// What the device lacks, one sentence each: each deserves a warning.
    pub lacks: Vec<String>,
    /// What the environment of the process should hold before a device is opened.
    pub environment: Vec<EnvironmentRule>,
    entries: BTreeMap<&'static str, Entry>,
}

impl Loaded {
    /// The layer that set the knob of that name.
    #[must_use]
    pub fn origin(&self, knob: &str) -> Origin {
        origin(&self.entries, knob)
    }

    /// Why the knob of that name has its value: a measurement, a document, a driver's source, or
    /// "inferred" with the thought behind it. `None` for a value whose layer does not say, as the command
    /// line, and for a name that is no knob's.
    #[must_use]
    pub fn source(&self, knob: &str) -> Option<&str> {
        match self.entries.get(knob) {
            Some(entry) => entry.source.as_deref(),
            None => {
                let info = Profile::KNOBS.iter().find(|info| info.name == knob)?;
                Some(info.source)
            }
        }
    }
}

fn origin(entries: &BTreeMap<&'static str, Entry>, knob: &str) -> Origin {
    entries
        .get(knob)
        .map_or(Origin::Defaults, |entry| entry.origin.clone())
}

/// A profile in the making: layers are added from below, and [`build`](Layers::build) checks the
/// result.
///
/// # Example
///
/// ```
/// use rpcrdma_tuning::{Layers, Settings};
///
/// // What `--profile rxe` means, on a device that was asked what it can do.
/// let device = Settings { read_depth_max: Some(8), ..Settings::default() };
/// let loaded = Layers::choose("rxe")?.limited(&device, "rxe0").build()?;
/// assert_eq!(loaded.profile.read_depth_max, 8);
/// assert_eq!(loaded.origin("read_depth_max").to_string(), "limit of rxe0");
/// # Ok::<(), rpcrdma_tuning::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Layers {
    profile: Profile,
    name: String,
    entries: BTreeMap<&'static str, Entry>,
    limits: Settings,
    /// Whose each limit is, and why.
    limit_entries: BTreeMap<&'static str, (String, Option<String>)>,
    environment: Vec<EnvironmentRule>,
    lacks: Vec<String>,
}

impl Layers {
    /// The built-in defaults alone.
    #[must_use]
    pub fn defaults() -> Self {
        Self {
            profile: Profile::default(),
            name: "defaults".to_owned(),
            entries: BTreeMap::new(),
            limits: Settings::default(),
            limit_entries: BTreeMap::new(),
            environment: Vec::new(),
            lacks: Vec::new(),
        }
    }

    /// The built-in defaults, and on them an embedded family (`FAMILY`), and on that one of its
    /// devices where the name says so (`FAMILY/DEVICE`).
    ///
    /// # Errors
    /// [`Error::UnknownProfile`] when there is none of that name, [`Error::Refused`] when it is of
    /// devices that cannot be used.
    pub fn named(name: &str) -> Result<Self, Error> {
        let (family_name, device_name) = match name.split_once('/') {
            Some((family, device)) => (family, Some(device)),
            None => (name, None),
        };
        let unknown = || Error::UnknownProfile {
            name: name.to_owned(),
            known: families::names().join(", "),
        };
        let (family, text) = families::find(family_name).ok_or_else(unknown)?;
        let origin = Origin::Family(family);
        let text = ProfileText::parse(text, &origin)?;
        if let Some(reason) = text.refused {
            return Err(Error::Refused {
                name: name.to_owned(),
                reason,
            });
        }

        let mut layers = Self {
            name: name.to_owned(),
            ..Self::defaults()
        };
        layers.put_table(&text.settings, &text.limits, family, &origin);
        layers.put_environment(text.environment);
        if let Some(device) = device_name {
            let text = text.device.get(device).ok_or_else(unknown)?;
            let origin = Origin::Device {
                family,
                device: device.to_owned(),
            };
            layers.put_table(&text.settings, &text.limits, name, &origin);
        }
        Ok(layers)
    }

    /// The built-in defaults, the embedded profile that the file's `base` names, if it names one,
    /// and on them the file's settings.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Parse`] or [`Error::Misplaced`] when the file cannot be read or
    /// understood, [`Error::UnknownProfile`] when its base does not exist.
    pub fn file(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let origin = Origin::File(path.to_owned());
        let text = std::fs::read_to_string(path).map_err(|source| Error::Read {
            path: path.to_owned(),
            source,
        })?;
        let text = ProfileText::parse(&text, &origin)?;
        if let Some(reason) = text.misplaced_in_a_file() {
            return Err(Error::Misplaced { origin, reason });
        }
        let below = match &text.base {
            Some(base) => Self::named(base)?,
            None => Self::defaults(),
        };
        let mut layers = Self {
            name: path.display().to_string(),
            ..below
        };
        let of = path.display().to_string();
        layers.put_table(&text.settings, &text.limits, &of, &origin);
        layers.put_environment(text.environment);
        Ok(layers)
    }

    /// What `--profile NAME|FILE` means: a path that ends in `.toml` is a file, all else the name
    /// of an embedded profile.
    ///
    /// # Errors
    /// Those of [`file`](Layers::file) and of [`named`](Layers::named).
    pub fn choose(name_or_path: &str) -> Result<Self, Error> {
        if Path::new(name_or_path)
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            Self::file(name_or_path)
        } else {
            Self::named(name_or_path)
        }
    }

    /// A profile that a program made, as the lowest layer.
    #[must_use]
    pub fn over(profile: Profile) -> Self {
        Self {
            profile,
            name: "program".to_owned(),
            ..Self::defaults()
        }
    }

    /// The name or the path that the profile was chosen by.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds the top layer, the command line.
    #[must_use]
    pub fn overrides(mut self, settings: &Settings) -> Self {
        self.put(settings, &BTreeMap::new(), &Origin::CommandLine);
        self
    }

    /// Adds what the program itself sets, on top of its profile.
    #[must_use]
    pub fn program(mut self, settings: &Settings) -> Self {
        self.put(settings, &BTreeMap::new(), &Origin::Program);
        self
    }

    /// Uses the limits of the actual device instead of those published for its model: a knob that `limits` sets cannot
    /// go beyond. `of` names the device, for warnings.
    #[must_use]
    pub fn limited(mut self, limits: &Settings, of: &str) -> Self {
        self.put_limits(limits, &BTreeMap::new(), of);
        self
    }

    /// Cuts what these layers ask beyond their limits, which is no [`Clamp`] then: for layers that nobody chose. What layers on
    /// top ask beyond is one.
    #[must_use]
    pub fn fitted(mut self) -> Self {
        self.clamp();
        self
    }

    /// Notes that the actual device lacks something, in one sentence, which [`Loaded::lacks`] returns.
    #[must_use]
    pub fn lacking(mut self, what: String) -> Self {
        self.lacks.push(what);
        self
    }

    /// Cuts the values down to what the device can do, checks them, alone and against each other, and
    /// hands out the profile. What was cut is in [`Loaded::clamps`].
    ///
    /// # Errors
    /// [`Error::Range`] or [`Error::Relation`] for the first value that cannot be
    /// used; the error names the layer that set it.
    pub fn build(mut self) -> Result<Loaded, Error> {
        // Checked before the limits are applied: a limit must not hide a value out of its range, which is a mistake.
        self.profile.validate_values(&|name| self.knob(name))?;
        let clamps = self.clamp();
        // A device's limit may be below the range.
        self.profile.validate_values(&|name| self.knob(name))?;
        self.profile.validate_relations(&|name| self.knob(name))?;
        Ok(Loaded {
            profile: self.profile,
            name: self.name,
            clamps,
            lacks: self.lacks,
            environment: self.environment,
            entries: self.entries,
        })
    }

    fn clamp(&mut self) -> Vec<Clamp> {
        let mut profile = self.profile.clone();
        let mut cut = Vec::new();
        profile.clamp(&self.limits, |name| cut.push(name));
        let mut clamps = Vec::new();
        for name in cut {
            let (of, source) = self.limit_entries.get(name).cloned().unwrap_or_default();
            clamps.push(Clamp {
                asked: self.knob(name),
                used: profile.value_text(name).unwrap_or_default(),
                of: of.clone(),
            });
            let origin = Origin::Limit(of);
            self.entries.insert(name, Entry { origin, source });
        }
        self.profile = profile;
        clamps
    }

    fn put_table(&mut self, settings: &Table, limits: &Table, of: &str, origin: &Origin) {
        self.put(&settings.settings, &settings.sources, origin);
        self.put_limits(&limits.settings, &limits.sources, of);
    }

    fn put(
        &mut self,
        settings: &Settings,
        sources: &BTreeMap<&'static str, Option<String>>,
        origin: &Origin,
    ) {
        let entries = &mut self.entries;
        self.profile.apply(settings, |name| {
            let entry = Entry {
                origin: origin.clone(),
                source: sources.get(name).cloned().flatten(),
            };
            entries.insert(name, entry);
        });
    }

    fn put_limits(
        &mut self,
        limits: &Settings,
        sources: &BTreeMap<&'static str, Option<String>>,
        of: &str,
    ) {
        self.limits.merge(limits);
        // Applied to a temporary profile, to visit the knobs that are set.
        Profile::default().apply(limits, |name| {
            let source = sources.get(name).cloned().flatten();
            self.limit_entries.insert(name, (of.to_owned(), source));
        });
    }

    /// A rule about a variable replaces the one of the layer below.
    fn put_environment(&mut self, rules: Vec<EnvironmentRule>) {
        for rule in rules {
            self.environment.retain(|other| other.name != rule.name);
            self.environment.push(rule);
        }
    }

    fn knob(&self, name: &'static str) -> Knob {
        Knob {
            name,
            value: self.profile.value_text(name).unwrap_or_default(),
            origin: origin(&self.entries, name),
        }
    }
}
