"""The text around facts: introductions, headings, small talk, sentences without answers.

No sentence here states a fact that a question asks for.
"""

from __future__ import annotations

from collections.abc import Mapping

from handbook.texts.names import NameSource, city, person, product
from handbook.texts.values import MONTHS, WEEKDAYS

INTRODUCTIONS = (
    "You are the assistant of {0}. Answer from the handbook below.",
    "Handbook of {0}.",
    "# {0}: staff handbook",
    "You answer questions about {0}. Use only the following handbook.",
    "This is the handbook of {0}. Answer briefly and only from it.",
    "You are a helpful assistant for {0}.",
    "You are a helpful assistant.",
    "Answer from this handbook.",
    "Welcome to {0}. Here is what everyone should know.",
    "Company handbook, {0}",
)  # fmt: skip
HEADINGS: Mapping[str, tuple[str, ...]] = {
    "city": ("# Offices", "Offices", "## Our offices", "OFFICES", "Section: offices"),
    "person": ("# People", "People", "## Staff", "PEOPLE", "Section: people"),
    "department": ("# Departments", "Teams", "## Teams", "DEPARTMENTS", "Section: teams"),
    "product": ("# Products", "Products", "## What we sell", "PRODUCTS", "Section: products"),
    "room": ("# Rooms", "Meeting rooms", "## Rooms", "ROOMS", "Section: rooms"),
    "client": ("# Clients", "Clients", "## Our clients", "CLIENTS", "Section: clients"),
    "project": ("# Projects", "Projects", "## Running projects", "PROJECTS", "Section: projects"),
    "machine": ("# Servers", "Servers", "## Machines", "SERVERS", "Section: servers"),
}
PLAIN = (
    "Please keep this handbook to yourself.",
    "Ask your manager if anything is unclear.",
    "This page is reviewed twice a year.",
    "Lock your screen when you leave your desk.",
    "Visitors must sign in at the front desk.",
    "Fire drills are announced a week before.",
    "We recycle paper, glass and batteries.",
    "Coffee is free for everyone.",
    "Be kind to each other and answer mail within two days.",
    "Lost property is kept for thirty days.",
    "Do not share passwords by mail.",
    "Travel is booked through the intranet.",
    "Receipts must be handed in before the end of the month.",
    "The kitchen is cleaned every evening.",
    "Printers are turned off at night.",
    "New colleagues get a tour in their first week.",
    "Windows must be closed after hours.",
    "The rules below hold for all sites.",
    "Holidays are agreed within each team.",
    "If in doubt, call before you write.",
    "Deliveries go through the back entrance.",
    "Bicycles may be left in the yard.",
    "Dogs are welcome on Fridays.",
    "Every change to this page is logged.",
    "Keep the meeting rooms tidy.",
    "The alarm is tested without notice.",
)  # fmt: skip
NAMING = (
    "{us} was founded in {year}.",
    "The {city} office was renovated in {year}.",
    "{person} wrote this chapter in {month}.",
    "We stopped selling the {product} in {year}.",
    "In {month} everyone meets in {city}.",
    "Most of us work from home on {day}.",
    "{person} joined {us} in {year}.",
    "The summer party is in {month}.",
)  # fmt: skip


def filler(source: NameSource, company_name: str) -> str:
    """Write a sentence that answers no question, perhaps with names that questions use."""
    if source.chance(0.6):
        return source.pick(PLAIN)
    return source.pick(NAMING).format(
        us=company_name,
        city=city(source),
        person=person(source),
        product=product(source),
        month=source.pick(MONTHS),
        day=source.pick(WEEKDAYS),
        year=source.number(1950, 2024),
    )
