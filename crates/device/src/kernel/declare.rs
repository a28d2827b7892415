//! [`kernel_args!`](crate::kernel_args): the parameters of a kernel, declared once.

use super::{Arg, Kernel, Param, ParamKind};
use crate::arena::View;
use crate::driver::{Address, RawArg};
use crate::error::DeviceError;

/// The arguments of a launch: a struct that [`kernel_args!`](crate::kernel_args) declared, with its memory given as `M`,
/// for example a [`View`].
pub trait KernelArgs<M> {
    /// Name and value of each argument, in the order of the declaration.
    fn values(self) -> impl IntoIterator<Item = (&'static str, ArgValue<M>)>;
}

/// The value of one argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ArgValue<M> {
    /// Memory. The parameter says whether it is read or written.
    Memory(M),
    /// A 32-bit unsigned integer.
    U32(u32),
    /// A 64-bit unsigned integer.
    U64(u64),
    /// A float.
    F32(f32),
}

impl Kernel {
    /// Each parameter with its value in `args`. An error if `args` was declared for other parameters.
    pub fn bind<M>(&self, args: impl KernelArgs<M>) -> Result<Vec<(Param, ArgValue<M>)>, DeviceError> {
        let wrong = |problem: String| DeviceError::Arguments { kernel: self.name, problem };
        let mut bound = Vec::with_capacity(self.params.len());
        for (name, value) in args.values() {
            let Some(&param) = self.params.get(bound.len()) else {
                return Err(wrong(format!("takes {} arguments, and no `{name}`", self.params.len())));
            };
            let fits = match value {
                ArgValue::Memory(_) => matches!(param.kind, ParamKind::In(_) | ParamKind::Out(_)),
                ArgValue::U32(_) => param.kind == ParamKind::U32,
                ArgValue::U64(_) => param.kind == ParamKind::U64,
                ArgValue::F32(_) => param.kind == ParamKind::F32,
            };
            if param.name != name || !fits {
                return Err(wrong(format!("takes `{}`, {}, where it is given `{name}`", param.name, param.kind)));
            }
            bound.push((param, value));
        }
        match self.params.get(bound.len()) {
            Some(param) => Err(wrong(format!("is not given `{}`", param.name))),
            None => Ok(bound),
        }
    }

    /// The arguments of a launch, with the element types of the parameters.
    pub(crate) fn bind_views<'v>(&self, args: impl KernelArgs<View<'v>>) -> Result<Vec<Arg<'v>>, DeviceError> {
        let arg = |(param, value): (Param, ArgValue<View<'v>>)| match (value, param.kind) {
            (ArgValue::Memory(view), ParamKind::Out(dtype)) => Arg::Out(view, dtype),
            (ArgValue::Memory(view), ParamKind::In(dtype)) => Arg::In(view, dtype),
            (ArgValue::Memory(_), _) => unreachable!("`bind` has matched the kinds"),
            (ArgValue::U32(n), _) => Arg::U32(n),
            (ArgValue::U64(n), _) => Arg::U64(n),
            (ArgValue::F32(x), _) => Arg::F32(x),
        };
        Ok(self.bind(args)?.into_iter().map(arg).collect())
    }

    /// The same for memory that is given by its address and length, of launches inside this crate.
    pub(crate) fn bind_addresses(&self, args: impl KernelArgs<(Address, u64)>) -> Result<Vec<RawArg>, DeviceError> {
        let arg = |(param, value): (Param, ArgValue<(Address, u64)>)| match (value, param.kind) {
            (ArgValue::Memory((at, bytes)), ParamKind::Out(_)) => RawArg::Write { at, bytes },
            (ArgValue::Memory((at, bytes)), _) => RawArg::Read { at, bytes },
            (ArgValue::U32(n), _) => RawArg::U32(n),
            (ArgValue::U64(n), _) => RawArg::U64(n),
            (ArgValue::F32(x), _) => RawArg::F32(x),
        };
        Ok(self.bind(args)?.into_iter().map(arg).collect())
    }
}

/// Declares the parameters of a kernel, in the order of its CUDA signature.
///
/// A parameter is `name: in T` (a `const T*`), `name: out T` (a `T*`), `name: u32`, `name: u64` or `name: f32`. Element
/// types may be generic:
///
/// ```
/// use tandem_device::{Element, Grid, HostArgs, Kernel, Source, kernel_args};
///
/// kernel_args! {
///     /// Arguments of `scale`.
///     struct ScaleArgs<T: Element> { x: in T, out: out T, factor: f32, count: u64 }
/// }
///
/// static SOURCE: Source = Source {
///     file: "scale.cu",
///     text: r#"
/// extern "C" __global__ void scale(const f32* x, f32* out, f32 factor, u64 count) {
///     for (u64 i = thread_index(); i < count; i += thread_count()) out[i] = factor * x[i];
/// }"#,
/// };
///
/// static SCALE: Kernel =
///     Kernel { name: "scale", source: &SOURCE, params: ScaleArgs::params::<f32>(), host: &scale };
///
/// fn scale(args: &mut HostArgs<'_>) {
///     let ScaleArgs { x, out, factor, count } = ScaleArgs::host::<f32>(args);
///     let count = count as usize;
///     out[..count].iter_mut().zip(&x[..count]).for_each(|(out, x)| *out = factor * x);
/// }
///
/// assert_eq!(tandem_device::compile::signature_problems(&[&SOURCE], &[&SCALE]), [""; 0]);
/// ```
///
/// The struct has a field for each parameter. In a launch, memory is a [`View`](crate::View) (or whatever the launching
/// code has for memory): `stream.launch(&scale, grid, ScaleArgs { x, out, factor: 2.0, count })`. In the host kernel it
/// is a slice.
#[macro_export]
macro_rules! kernel_args {
    (
        $(#[$attribute:meta])*
        $vis:vis struct $Args:ident $(<$($generic:ident: $bound:path),+ $(,)?>)? {
            $($(#[$field_attribute:meta])* $field:ident: $kind:ident $($element:ty)?),+ $(,)?
        }
    ) => {
        $(#[$attribute])*
        #[allow(non_camel_case_types, reason = "the type of a memory field has the field's name")]
        #[allow(dead_code, reason = "host kernels need not read every argument")]
        // One type parameter for each memory field. `any()` is false: the attribute is empty, and repeats with the field.
        $vis struct $Args<$($(#[cfg_attr(any(), doc = stringify!($element))] $field,)?)+> {
            $($(#[$field_attribute])* $vis $field: $crate::kernel_args!(@field $field $kind $($element)?),)+
        }

        #[allow(dead_code, reason = "a kernel that runs on cards only has no host kernel")]
        impl $Args<$($($crate::kernel_args!(@unit $element),)?)+> {
            /// The parameters of the kernel.
            $vis const fn params$(<$($generic: $bound),+>)?() -> &'static [$crate::Param] {
                const { &[$($crate::Param {
                    name: stringify!($field),
                    kind: $crate::kernel_args!(@kind $kind $($element)?),
                }),+] }
            }

            /// The arguments of the host kernel.
            $vis fn host<'a $($(, $generic: $bound)+)?>(
                args: &mut $crate::HostArgs<'a>,
            ) -> $Args<$($($crate::kernel_args!(@slice 'a $kind $element),)?)+> {
                $Args { $($field: $crate::kernel_args!(@take args $field $kind $($element)?),)+ }
            }
        }

        impl<M> $crate::KernelArgs<M> for $Args<$($($crate::kernel_args!(@memory M $element),)?)+> {
            fn values(self) -> impl IntoIterator<Item = (&'static str, $crate::ArgValue<M>)> {
                [$((stringify!($field), $crate::kernel_args!(@value $kind (self.$field) $($element)?))),+]
            }
        }
    };

    (@field $field:ident in $element:ty) => { $field };
    (@field $field:ident out $element:ty) => { $field };
    (@field $field:ident $scalar:ident) => { $scalar };

    (@unit $element:ty) => { () };
    (@memory $memory:ident $element:ty) => { $memory };
    (@slice $a:lifetime in $element:ty) => { &$a [$element] };
    (@slice $a:lifetime out $element:ty) => { &$a mut [$element] };

    (@kind in $element:ty) => { $crate::ParamKind::In(<$element as $crate::Element>::DTYPE) };
    (@kind out $element:ty) => { $crate::ParamKind::Out(<$element as $crate::Element>::DTYPE) };
    (@kind u32) => { $crate::ParamKind::U32 };
    (@kind u64) => { $crate::ParamKind::U64 };
    (@kind f32) => { $crate::ParamKind::F32 };

    (@take $args:ident $field:ident in $element:ty) => { $args.take_in::<$element>(stringify!($field)) };
    (@take $args:ident $field:ident out $element:ty) => { $args.take_out::<$element>(stringify!($field)) };
    (@take $args:ident $field:ident u32) => { $args.take_u32(stringify!($field)) };
    (@take $args:ident $field:ident u64) => { $args.take_u64(stringify!($field)) };
    (@take $args:ident $field:ident f32) => { $args.take_f32(stringify!($field)) };

    (@value in ($value:expr) $element:ty) => { $crate::ArgValue::Memory($value) };
    (@value out ($value:expr) $element:ty) => { $crate::ArgValue::Memory($value) };
    (@value u32 ($value:expr)) => { $crate::ArgValue::U32($value) };
    (@value u64 ($value:expr)) => { $crate::ArgValue::U64($value) };
    (@value f32 ($value:expr)) => { $crate::ArgValue::F32($value) };
}
