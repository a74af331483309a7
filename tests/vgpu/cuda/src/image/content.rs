//! What an image holds, and its text.

/// One parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Bytes from the start of the parameter buffer.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

/// One kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelImage {
    /// Its name as `cuModuleGetFunction` wants it.
    pub name: String,
    /// Its parameters, in order.
    pub params: Vec<Param>,
}

/// One module-scope variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: usize,
}

/// What an image holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Its kernels, in the image's order.
    pub kernels: Vec<KernelImage>,
    /// Its variables.
    pub variables: Vec<Variable>,
}

impl Image {
    /// PTX text with the same names and the same layout of parameters, and empty kernels.
    pub fn to_ptx(&self) -> String {
        let mut text = String::from(".version 8.0\n.target sm_90\n.address_size 64\n");
        for Variable { name, bytes } in &self.variables {
            text += &format!(".visible .global .align 8 .b8 {name}[{bytes}];\n");
        }
        for KernelImage { name, params } in &self.kernels {
            // The largest alignment that the offset allows brings each parameter to its place.
            let param = |(i, p): (usize, &Param)| {
                let align = if p.offset == 0 {
                    16
                } else {
                    1 << p.offset.trailing_zeros()
                };
                format!(".param .align {align} .b8 p{i}[{}]", p.size)
            };
            let list: Vec<String> = params.iter().enumerate().map(param).collect();
            text += &format!(".visible .entry {name}({}) {{ ret; }}\n", list.join(", "));
        }
        text
    }

    /// Adds what `other` holds and this does not, as linking does.
    pub fn link(&mut self, other: Self) {
        for kernel in other.kernels {
            if self.kernels.iter().all(|known| known.name != kernel.name) {
                self.kernels.push(kernel);
            }
        }
        for variable in other.variables {
            if self
                .variables
                .iter()
                .all(|known| known.name != variable.name)
            {
                self.variables.push(variable);
            }
        }
    }
}
