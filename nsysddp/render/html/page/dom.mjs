/** Elements of the page, found and made. Everything from the trace goes in as text, never as markup. */

export const byId = (id) => document.getElementById(id);
export const read = (id) => JSON.parse(byId(id).textContent);
export const make = (tag, text, attributes = {}) => {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
};
