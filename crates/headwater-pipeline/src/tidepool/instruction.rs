//! The instruction set. An instruction is one molecule of type code; its value names the operation, a register and a small constant, and
//! every value is some instruction, so that a mutation always yields a program.

/// How many registers an organism has.
pub(super) const REGISTERS: usize = 4;

/// What an instruction does. "Ahead" is the cell next to the head in the organism's direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Nothing.
    Rest,
    /// The head moves ahead.
    Move,
    /// The register becomes the type of the molecule ahead: 0 if there is none, -1 if it is of a living organism or beyond the edge.
    Sense,
    /// Takes the molecule ahead for its energy, unless a living organism owns it.
    Eat,
    /// Puts the register as data ahead, unless a living organism owns that cell; its own data it may replace.
    Write,
    /// Turns by the register: directions are numbered, two per dimension.
    Turn,
    /// Continues as many instructions away as the constant says if the register is 0.
    Jump,
    /// Adds the constant to the register.
    Add,
    /// The register becomes a random number below the constant.
    Random,
    /// The register becomes the constant.
    Set,
    /// Copies the program to the cells ahead and starts an organism there, for half of the energy.
    Fork,
}

const OPERATIONS: [Operation; 11] = [
    Operation::Rest,
    Operation::Move,
    Operation::Sense,
    Operation::Eat,
    Operation::Write,
    Operation::Turn,
    Operation::Jump,
    Operation::Add,
    Operation::Random,
    Operation::Set,
    Operation::Fork,
];

/// An operation with its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) operation: Operation,
    /// Below [`REGISTERS`].
    pub(super) register: usize,
    /// From -32 to 31.
    pub(super) constant: i64,
}

impl Instruction {
    /// The instruction of a molecule's value: 8 bits of operation, 2 of register, 6 of constant. Higher bits do not count.
    pub(super) fn decode(value: i32) -> Self {
        Instruction {
            operation: OPERATIONS[(value & 0xFF) as usize % OPERATIONS.len()],
            register: (value >> 8 & 3) as usize,
            // Up and down again: the shift to the right repeats the sign.
            constant: i64::from(value << 16 >> 26),
        }
    }

    /// The value of an instruction.
    const fn encode(operation: Operation, register: i32, constant: i32) -> i32 {
        operation as i32 | register << 8 | (constant & 0x3F) << 10
    }
}

/// A value that decodes to any instruction.
pub(super) const fn value_from_bits(bits: u64) -> i32 {
    (bits & 0xFFFF) as i32
}

/// The program of the first organisms: feed, wander, now and then turn and fork.
pub(super) const ANCESTOR: [i32; 11] = [
    Instruction::encode(Operation::Sense, 0, 0),
    // Nothing ahead: no meal.
    Instruction::encode(Operation::Jump, 0, 2),
    Instruction::encode(Operation::Eat, 0, 0),
    Instruction::encode(Operation::Move, 0, 0),
    Instruction::encode(Operation::Random, 1, 6),
    Instruction::encode(Operation::Jump, 1, 2),
    // Register 2 is never set, so this one always jumps.
    Instruction::encode(Operation::Jump, 2, -6),
    Instruction::encode(Operation::Random, 1, 16),
    Instruction::encode(Operation::Turn, 1, 0),
    Instruction::encode(Operation::Fork, 0, 0),
    Instruction::encode(Operation::Write, 1, 0),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_round_trip() {
        for operation in OPERATIONS {
            for (register, constant) in [(0, 0), (3, 31), (2, -32), (1, -1)] {
                let decoded = Instruction::decode(Instruction::encode(operation, register, constant));
                let expected =
                    Instruction { operation, register: register as usize, constant: i64::from(constant) };
                assert_eq!(decoded, expected);
            }
        }
    }

    #[test]
    fn every_value_is_an_instruction() {
        for value in (i32::MIN..=i32::MAX).step_by(65_537).chain(-70_000..70_000) {
            let decoded = Instruction::decode(value);
            assert!(decoded.register < REGISTERS && (-32..32).contains(&decoded.constant), "{value}");
        }
        assert_eq!(value_from_bits(u64::MAX), 0xFFFF);
    }
}
