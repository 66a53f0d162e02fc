"""What the ranks of the gangs in trees do."""


def double(number):
    return 2 * number
