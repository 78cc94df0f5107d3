//! What the table of knobs becomes: [`Profile`](crate::Profile), each knob with a value, [`Settings`](crate::Settings), any
//! of them set, and the functions that go through all knobs.

/// Makes them from the table.
macro_rules! knobs {
    ($(
        $(#[doc = $line:literal])*
        $name:ident: $kind:ty = $default:expr, $unit:literal, $values:expr, because $source:literal;
    )*) => {
        /// Every knob of a process, each with a value.
        ///
        /// A profile that came from [`Layers::build`](crate::Layers::build) has been checked; check one that was changed
        /// afterwards with [`validate`](Profile::validate).
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Profile {
            $( $(#[doc = $line])* pub $name: $kind, )*
        }

        impl Default for Profile {
            /// The built-in defaults, the lowest layer.
            fn default() -> Self {
                Self { $( $name: $default, )* }
            }
        }

        /// The knobs that one layer sets; `None` leaves the value of the layers below.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct Settings {
            $( $(#[doc = $line])* pub $name: Option<$kind>, )*
        }

        impl Profile {
            /// The table of knobs, in the order in which they are documented.
            pub const KNOBS: &'static [KnobInfo] = &[$( KnobInfo {
                name: stringify!($name),
                unit: $unit,
                values: $values,
                source: $source,
                lines: &[$( $line ),*],
            } ),*];

            /// The value of each knob, in the order of [`Profile::KNOBS`].
            pub fn values(&self) -> impl Iterator<Item = (&'static KnobInfo, Value)> + use<> {
                let values = [$( self.$name.value() ),*];
                Self::KNOBS.iter().zip(values)
            }

            /// Sets every knob that `settings` sets, and calls `set` with its name.
            pub(crate) fn apply(&mut self, settings: &Settings, mut set: impl FnMut(&'static str)) {
                $(
                    if let Some(value) = settings.$name {
                        self.$name = value;
                        set(stringify!($name));
                    }
                )*
            }

            /// Cuts every knob down to its limit in `limits`, and calls `cut` with the name of each that was beyond.
            pub(crate) fn clamp(&mut self, limits: &Settings, mut cut: impl FnMut(&'static str)) {
                $(
                    if let Some(limit) = limits.$name
                        && let Some(value) = self.$name.cut_to(limit)
                    {
                        self.$name = value;
                        cut(stringify!($name));
                    }
                )*
            }
        }

        impl Settings {
            /// Takes over every knob that `other` sets.
            pub(crate) fn merge(&mut self, other: &Settings) {
                $( if other.$name.is_some() { self.$name = other.$name; } )*
            }

            /// Reads the value that follows the knob's name in a file, and returns its source.
            pub(crate) fn read<'de, A: MapAccess<'de>>(
                &mut self,
                name: &str,
                file: &mut A,
            ) -> Result<Option<String>, A::Error> {
                match name {
                    $( stringify!($name) => {
                        let Entry { value, source } = file.next_value()?;
                        self.$name = Some(value);
                        Ok(source)
                    } )*
                    _ => unreachable!("a name of the table"),
                }
            }
        }
    };
}

pub(crate) use knobs;
